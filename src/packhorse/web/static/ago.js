// Times that are shown as "3 min ago" move on while the page is open: one timer walks all of them. The exact time stays
// in their title. It uses the server's clock: the browser's may be wrong.

const STEP = 1000; // ms: the shortest step that is shown
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
let ahead = 0; // ms that the server's clock is ahead of ours

// As the server says it: seconds that have passed, or are to come if they are negative.
export function ago(passed) {
  if (Math.abs(passed) < 1) return "now";
  const left = Math.round(Math.abs(passed));
  const [size, unit] = UNITS.find(([least]) => left >= least);
  const told = `${Math.floor(left / size)} ${unit}`;
  return passed > 0 ? `${told} ago` : `in ${told}`;
}

function walk() {
  if (document.hidden) return;
  for (const each of document.querySelectorAll("time.ago")) {
    const told = ago((Date.now() + ahead - Date.parse(each.dateTime)) / 1000);
    if (each.textContent !== told) each.textContent = told;
  }
}

function compare() {
  ahead = Date.parse(document.querySelector("main").dataset.now) - Date.now();
}

export function moveOn() {
  compare();
  document.addEventListener("refreshed", compare);
  document.addEventListener("visibilitychange", walk);
  setInterval(walk, STEP);
}
