// The drawing pad: its content as `sample:3` or as a data URL.
const canvas = element.querySelector("canvas");
const hint = element.querySelector(".nf-hint");
const warning = element.querySelector(".nf-warning");
const input = element.querySelector("input[type=file]");
const paint = canvas.getContext("2d");
let source = "";
let isFile = false;
let last = null;

function clear() {
  paint.fillStyle = "black";
  paint.fillRect(0, 0, canvas.width, canvas.height);
  source = "";
  isFile = false;
  hint.style.display = "";
  warning.textContent = "";
}

function show(image) {
  const scale = Math.min(canvas.width / image.width, canvas.height / image.height);
  const [width, height] = [image.width * scale, image.height * scale];
  paint.drawImage(image, (canvas.width - width) / 2, (canvas.height - height) / 2, width, height);
}

function place(event) {
  const box = canvas.getBoundingClientRect();
  return [
    ((event.clientX - box.left) / box.width) * canvas.width,
    ((event.clientY - box.top) / box.height) * canvas.height,
  ];
}

function stroke(event) {
  const here = place(event);
  paint.strokeStyle = "white";
  paint.lineWidth = 21;
  paint.lineCap = paint.lineJoin = "round";
  paint.beginPath();
  paint.moveTo(...(last || here));
  paint.lineTo(...here);
  paint.stroke();
  last = here;
}

function fit() {
  document.querySelector("#nf-fit").click();
}

canvas.addEventListener("pointerdown", (event) => {
  if (isFile) clear();
  canvas.setPointerCapture(event.pointerId);
  hint.style.display = "none";
  source = "drawing";
  stroke(event);
});
canvas.addEventListener("pointermove", (event) => {
  if (last) stroke(event);
});
for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (last = null));

element.querySelector("[data-clear]").addEventListener("click", clear);
for (const button of element.querySelectorAll("[data-sample]")) {
  button.addEventListener("click", () => {
    clear();
    hint.style.display = "none";
    show(button.querySelector("img"));
    source = "sample:" + button.dataset.sample;
    fit();
  });
}

acceptFiles(canvas.parentElement, input, async (file) => {
  clear();
  hint.style.display = "none";
  isFile = true;
  const content = await readFile(file, MAX_BYTES, warning);
  if (content === null) return;
  source = content;
  fit();
  if (file.size > 0) {
    const image = await createImageBitmap(file, { resizeWidth: 280 }).catch(() => null);
    if (image && isFile) show(image);
    else if (isFile) hint.style.display = "";
  }
});

clear();
window.nfPad = {
  source: () => (source === "drawing" ? canvas.toDataURL("image/png") : source),
  // Replaces the drawing by a network.
  use: (network) => {
    clear();
    source = network;
    isFile = true;
    fit();
  },
};
