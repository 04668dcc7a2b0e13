// The classifiers of the second tab: `sample:3`, or a visitor's file as a data URL.
const warning = element.querySelector(".nf-warning");
const buttons = [...element.querySelectorAll("[data-sample]")];
let source = "";

function open(value, chosen) {
  source = value;
  for (const button of buttons) button.setAttribute("aria-pressed", button === chosen);
  document.querySelector("#nf-cnn-open").click();
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    warning.textContent = "";
    open("sample:" + button.dataset.sample, button);
  });
}
acceptFiles(element.querySelector(".nf-drop"), element.querySelector("input[type=file]"), async (file) => {
  const content = await readFile(file, MAX_BYTES, warning);
  if (content !== null) open(content, null);
});
window.nfCnn = { source: () => source };
