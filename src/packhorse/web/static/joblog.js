// The log of a job: it grows, follows its end until somebody scrolls up, is searched on the server, and loads what is earlier.

const MOST = 3000; // lines kept on the page: the whole log is a link away
const NEAR = 24; // pixels from the end that still count as the end
const box = document.getElementById("log-box");
const form = document.getElementById("log-form");
const latest = document.getElementById("latest");
const earlier = document.getElementById("earlier");
const result = document.getElementById("found");
const number = new Intl.NumberFormat("en");
let log = document.getElementById("log");
let last = Number(log.dataset.last);
let before = Number(log.dataset.before) || null;
let following = !log.dataset.line;
let asked = 0;
let many = new Set(); // stages whose lines name their element
let isStale = false; // it shows a part of the log that new lines do not belong to

export function startLog(stagesWithElements) {
  many = new Set(stagesWithElements);
  if (following) down();
  const linked = location.hash.startsWith("#L") && document.getElementById(location.hash.slice(1));
  if (linked) { following = false; linked.scrollIntoView({ block: "center" }); }
  isStale = Boolean(log.dataset.line) || new URLSearchParams(location.search).has("before");
  tell();
}

export function lastLine() { return last; }

// [n, time, stage, element, level, [[styles, text], …]]
export function addLines(lines, isGap) {
  const fresh = lines.filter((each) => each[0] > last);
  if (!fresh.length) return;
  last = fresh.at(-1)[0];
  if (isStale) { latest.hidden = false; return; }
  if (isGap) log.append(note("… some lines are missing here: more was printed than is kept …"));
  log.append(...fresh.filter(wanted).map(item));
  while (log.childElementCount > MOST) { log.firstElementChild.remove(); before = Number(log.firstElementChild.dataset.n) || before; }
  earlier.hidden = !before;
  count();
  if (following) down(); else latest.hidden = false;
}

function chosen() {
  const given = new FormData(form);
  return { stage: given.get("stage") || "", element: given.get("element") || "", q: given.get("q") || "" };
}

function wanted([, , stage, element, , parts]) {
  const { stage: only, element: which, q } = chosen();
  return (!only || stage === only) && (which === "" || element === Number(which)) &&
    (!q || parts.map((each) => each[1]).join("").toLowerCase().includes(q.toLowerCase()));
}

function item([n, at, stage, element, level, parts]) {
  const made = document.createElement("li");
  made.dataset.n = n;
  made.id = `L${n}`;
  const link = document.createElement("a");
  link.className = "no";
  const address = new URL(document.getElementById("job").dataset.address, location.href);
  link.href = `${address.pathname}?line=${n}#L${n}`;
  link.setAttribute("aria-label", `Line ${n}`);
  link.textContent = n;
  const line = span(`line${level ? ` is-${level}` : ""}`, "");
  for (const [style, text] of parts) line.append(style ? span(style, text) : text);
  made.append(link, " ", span("at", at), " ", span("who", many.has(stage) ? `${stage}[${element}]` : stage), " ", line);
  return made;
}

function span(name, text) {
  const made = document.createElement("span");
  made.className = name;
  made.textContent = text;
  return made;
}

function note(text) {
  const made = document.createElement("li");
  made.append(span("line muted", text));
  return made;
}

let isWaiting = false;
function down() {
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(() => { isWaiting = false; box.scrollTop = box.scrollHeight; });
}

box.addEventListener("scroll", () => {
  following = !isStale && box.scrollTop + box.clientHeight >= box.scrollHeight - NEAR;
  if (following || isWaiting) latest.hidden = true;
  else if (box.scrollHeight > box.clientHeight) latest.hidden = false;
}, { passive: true });

latest.addEventListener("click", async () => {
  if (isStale) { isStale = false; await find(); }
  following = true;
  latest.hidden = true;
  box.scrollTop = box.scrollHeight;
  box.focus();
});

// Search, on the server: what is on the page is only the end of the log.

const ROUNDS = 25; // requests of one search, each of which looks at a part of the log
const ENOUGH = 300; // lines after which a search stops

async function find() {
  const turn = ++asked;
  const { lines, next } = await look(null, turn, (found) => { result.textContent = `${number.format(found)} so far…`; });
  if (turn !== asked) return;
  before = next;
  if (lines.length) last = Math.max(last, lines.at(-1)[0]);
  log.replaceChildren(...lines.map(item));
  earlier.hidden = !before;
  isStale = false;
  tell();
  box.scrollTop = box.scrollHeight;
  following = true;
}

async function look(from, turn, said = () => {}) {
  let lines = [];
  let next = from;
  for (let round = 0; round < ROUNDS; round++) {
    const query = new URLSearchParams(Object.entries({ ...chosen(), before: next ?? "" }).filter(([, value]) => value !== ""));
    const answer = await fetch(`${form.dataset.source}?${query}`, { headers: { Accept: "application/json" } });
    if (!answer.ok || turn !== asked) return { lines, next };
    const page = await answer.json();
    lines = [...page.lines, ...lines];
    next = page.before;
    if (!next || lines.length >= ENOUGH || !isFiltered()) break;
    said(lines.length);
  }
  return { lines, next };
}

function isFiltered() { return Object.values(chosen()).some((value) => value !== ""); }

earlier.addEventListener("click", async (event) => {
  event.preventDefault();
  const { lines, next } = await look(before, asked);
  const height = box.scrollHeight;
  following = false;
  log.prepend(...lines.map(item));
  box.scrollTop += box.scrollHeight - height;
  before = next;
  earlier.hidden = !before;
  count();
});

form.addEventListener("submit", (event) => { event.preventDefault(); start(0); });
form.addEventListener("input", (event) => start(event.target.matches("select") ? 0 : 250));

let timer = 0;
function start(wait) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const query = new URLSearchParams(Object.entries(chosen()).filter(([, value]) => value !== ""));
    const place = new URL(document.getElementById("job").dataset.address, location.href);
    history.replaceState(null, "", `${place.pathname}${query.size ? `?${query}` : ""}`);
    find();
  }, wait);
}

function count() {
  const lines = log.querySelectorAll("li[data-n]").length;
  result.textContent = isFiltered() ? `${number.format(lines)}${before ? " or more" : ""} ${lines === 1 ? "line" : "lines"}` : "";
}

function tell() {
  count();
  for (const each of log.querySelectorAll(".is-linked")) each.classList.remove("is-linked");
  if (log.dataset.line) document.getElementById(`L${log.dataset.line}`)?.classList.add("is-linked");
}
