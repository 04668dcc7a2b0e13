// A visitor's sine network: its file, frequency and convention go to the pad as `network:OMEGA:CONVENTION:FILE`.
const zone = element.querySelector(".nf-drop");
const warning = element.querySelector(".nf-warning");
const name = element.querySelector(".nf-file");
const [omega, convention] = element.querySelectorAll("[data-form]");
let content = null;

function open() {
  window.nfPad.use(`network:${omega.value}:${convention.value}:${content}`);
}

acceptFiles(zone, element.querySelector("input[type=file]"), async (file) => {
  const read = await readFile(file, MAX_BYTES, warning);
  if (read === null) return;
  content = read;
  name.textContent = file.name;
  open();
});
for (const field of [omega, convention]) {
  // Opens the same network in another form, if it is still the one on the page.
  field.addEventListener("change", () => {
    if (content !== null && window.nfPad.source().startsWith("network:")) open();
  });
}
