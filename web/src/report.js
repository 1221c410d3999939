// The report: draws the charts that the page describes, their numbers on demand, light and dark.
// `parley` is charts.js.
const { charts } = JSON.parse(document.getElementById("parley-data").textContent);

for (const element of document.querySelectorAll("[data-chart]")) {
  const description = charts[element.dataset.chart];
  parley.draw(element, description);
  if (description.classes) classKey(element, description.classes);
}

function classKey(element, classes) {
  const key = element.appendChild(document.createElement("ul"));
  key.className = "classes";
  key.setAttribute("aria-label", "classes and their colours");
  const shown = classes.length <= 24 ? classes.keys() : [0, Math.floor(classes.length / 2), classes.length - 1];
  const swatches = [...shown].map((index) => {
    const item = key.appendChild(document.createElement("li"));
    const swatch = item.appendChild(document.createElement("i"));
    item.append(classes[index]);
    return [swatch, index];
  });
  const paint = () =>
    swatches.forEach(([swatch, index]) => (swatch.style.background = parley.classColour(index, classes.length)));
  document.addEventListener("parley-theme", paint);
  paint();
}

// Values for those who cannot hover, made when somebody asks for them.
for (const details of document.querySelectorAll("details.numbers")) {
  details.addEventListener("toggle", () => details.open && !details.querySelector("table") && fill(details));
}

function fill(details) {
  const { x, y, series } = charts[details.dataset.numbers];
  const scroll = details.appendChild(document.createElement("div"));
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  const table = scroll.appendChild(document.createElement("table"));
  const head = table.createTHead().insertRow();
  for (const name of [x.name, ...series.map((s) => s.name)]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = name;
    head.append(cell);
  }
  const body = table.createTBody();
  const rows = new Map();
  series.forEach((s, n) =>
    s.x.forEach((at, i) => rows.set(at, (rows.get(at) ?? Array(series.length).fill(undefined)).with(n, s.y[i]))),
  );
  for (const at of [...rows.keys()].sort((a, b) => a - b)) {
    const row = body.insertRow();
    row.insertCell().textContent = parley.number(at);
    rows.get(at).forEach((value) => (row.insertCell().textContent = parley.number(value)));
  }
  table.setAttribute("aria-label", `${y.name} over ${x.name}`);
}

const button = document.getElementById("theme");
const say = () => (button.textContent = parley.theme() === "dark" ? "Light" : "Dark");
button.hidden = false;
button.addEventListener("click", () => parley.setTheme(parley.theme() === "dark" ? "light" : "dark"));
document.addEventListener("parley-theme", say);
say();
