// Reads chosen or dropped files as data URLs. Included before the other scripts of the page.

// Calls `take` with each file that is chosen in `input` or dropped on `zone`.
function acceptFiles(zone, input, take) {
  input.addEventListener("change", () => {
    const file = input.files[0];
    input.value = "";
    if (file) take(file);
  });
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("nf-over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("nf-over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("nf-over");
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
}

// The content of a file as a data URL; null, with a warning on the page, if it is too large.
function readFile(file, limit, warning) {
  warning.textContent = "";
  if (file.size > limit) {
    warning.textContent = `The file is too large: expected at most ${Math.floor(limit / 2 ** 20)} MB. Choose a smaller one.`;
    return Promise.resolve(null);
  }
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve("data:application/octet-stream;base64," + (String(reader.result).split(",")[1] || ""));
    reader.onerror = () => {
      warning.textContent = "The file could not be read. Choose it again.";
      resolve(null);
    };
    reader.readAsDataURL(file);
  });
}

// A file that is dropped outside of the zone must not replace the page.
for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
