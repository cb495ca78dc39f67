// Files of a job, shown when somebody wants to see them.

const PREVIEW = 65536; // bytes of a text that are shown
const ROWS = 50; // of a table

document.documentElement.classList.add("live"); // shows what would do nothing without scripts

document.addEventListener("toggle", (event) => {
  const place = event.target;
  if (!(place instanceof Element) || !place.open) return;
  if (place.matches("details.preview")) show(place);
  else if (place.matches("details.stage-files")) list(place.querySelector(".files-body[data-source]"));
}, true);

document.addEventListener("click", (event) => {
  const link = event.target.closest?.(".files-body .pager a");
  if (!link) return;
  event.preventDefault();
  load(link.closest(".files-body"), link.href);
});

// The first file of a result, which is open from the start.
export function showFirst() {
  for (const place of document.querySelectorAll(".preview.is-first")) {
    if (["text", "json", "table"].includes(place.dataset.kind)) show(place);
  }
}

// A list of files too long for the page: it is a page of its own, and its part of it is put here.
function list(body) {
  if (!body || body.dataset.loaded) return;
  body.dataset.loaded = "1";
  load(body, body.dataset.source);
}

async function load(body, address) {
  const answer = await fetch(address, { headers: { Accept: "text/html" } });
  if (!answer.ok) { delete body.dataset.loaded; return; }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  body.replaceChildren(page.getElementById("files"));
}

function show(place) {
  const shown = place.querySelector(".shown");
  if (shown.childElementCount) return;
  const { kind, source, name } = place.dataset;
  if (kind === "text" || kind === "json" || kind === "table") { text(shown, place.dataset); return; }
  const media = document.createElement(kind === "image" ? "img" : kind);
  if (kind === "image") { media.alt = name; } else { media.controls = true; media.preload = "metadata"; media.title = name; }
  media.addEventListener("error", () => say(shown, "It cannot be shown here. Download it instead."));
  media.src = source;
  shown.append(media);
}

async function text(shown, { kind, source, size, name }) {
  const all = Number(size);
  if (all === 0) { say(shown, "It is empty."); return; }
  const answer = await fetch(source, { headers: { Range: `bytes=0-${PREVIEW - 1}` } });
  if (!answer.ok) {
    say(shown, answer.status === 429 ? "Too many downloads just now. Try again in a moment." : "It cannot be loaded just now.");
    return;
  }
  const told = await answer.text();
  const rows = kind === "table" ? split(told, /\.tsv$/i.test(name) ? "\t" : ",", all > PREVIEW) : [];
  if (rows.length > 1) { shown.replaceChildren(table(rows, name)); } else {
    const pre = document.createElement("pre");
    pre.tabIndex = 0;
    pre.textContent = pretty(told, kind === "json" && all <= PREVIEW);
    shown.replaceChildren(pre);
  }
  if (all > PREVIEW || rows.length > ROWS) say(shown, "Only the beginning. Download it to see the rest.", true);
}

// Fields may stand in quotes, and a quote in them is written twice.
function split(told, comma, isCut) {
  const rows = [];
  let row = [];
  let field = "";
  let quoted = false;
  for (let at = 0; at < told.length && rows.length <= ROWS; at++) {
    const letter = told[at];
    if (quoted) {
      if (letter !== '"') field += letter;
      else if (told[at + 1] === '"') { field += '"'; at++; } else quoted = false;
    } else if (letter === '"' && field === "") quoted = true;
    else if (letter === comma) { row.push(field); field = ""; }
    else if (letter === "\n") { rows.push([...row, field]); row = []; field = ""; }
    else if (letter !== "\r") field += letter;
  }
  if (!isCut && (field || row.length) && rows.length <= ROWS) rows.push([...row, field]);
  return rows;
}

function table(rows, name) {
  const box = document.createElement("div");
  box.className = "scroll";
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", name);
  const made = document.createElement("table");
  const head = made.createTHead().insertRow();
  for (const title of rows[0]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = title;
    head.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows.slice(1, ROWS + 1)) {
    const line = body.insertRow();
    for (const value of row) line.insertCell().textContent = value;
  }
  box.append(made);
  return box;
}

function pretty(told, isJson) {
  if (!isJson) return told;
  try { return JSON.stringify(JSON.parse(told), null, 2); } catch { return told; }
}

function say(shown, words, beside = false) {
  const note = document.createElement("p");
  note.className = "muted";
  note.textContent = words;
  if (beside) shown.append(note); else shown.replaceChildren(note);
}
