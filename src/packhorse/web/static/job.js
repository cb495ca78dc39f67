// The page of a job: applies changes. It reloads only after a lost connection, and while the list of events is open.
import { changeCells, setCells, startGrids } from "./elements.js";
import { addLines, lastLine, startLog } from "./joblog.js";
import { morph, refresh } from "./live.js";
import { showFirst } from "./previews.js";
import { moveTimeline, startTimeline } from "./timeline.js";

const LONGEST = 15000; // ms between tries to reach a server that is away
const SILENT = 40000; // ms without a word, not even a ping: the connection is dead, although nobody has noticed
const LAST = 4000; // ms for the last lines of a job that the page already shows as ended
const link = document.getElementById("link");
const NODE = 1.94; // pixels of a node's bar per percent
let source = null;
let wait = 1000;
let areEventsOld = false;
let watch = 0;

function place() { return document.getElementById("job"); }

if (document.querySelector("#job > .error[role=alert]")) history.replaceState(null, "", place().dataset.address); // a form was refused

function start() {
  const address = place()?.dataset.live;
  if (source || !address) return;
  source = new EventSource(`${address}?${new URLSearchParams({ log_after: lastLine(), shape: place().dataset.shape })}`);
  source.addEventListener("open", () => { link.hidden = true; wait = 1000; });
  source.addEventListener("error", lost);
  hear("ping", () => {});
  hear("state", (told) => take(told, setCells));
  hear("delta", (told) => take(told, changeCells));
  hear("parts", takeParts);
  hear("end", () => { stop(); delete place().dataset.live; begin(); });
  expectMore();
}

function hear(type, act) {
  source.addEventListener(type, (event) => { expectMore(); act(JSON.parse(event.data)); });
}

function expectMore() {
  clearTimeout(watch);
  watch = setTimeout(lost, SILENT);
}

function stop() {
  clearTimeout(watch);
  source?.close();
  source = null;
}

function take(told, cells) {
  if (told.progress !== undefined) percent(told.progress);
  if (told.left !== undefined) put(document.getElementById("left"), told.left);
  for (const [name, [progress, text, node, status]] of Object.entries(told.stages ?? {})) stage(name, progress, text, node, status);
  for (const [name, changes] of Object.entries(told.cells ?? {})) cells(name, changes);
  if (told.lines) addLines(told.lines, told.gap);
}

// Stages or the job have begun or ended: the parts of the page that this changes, and rows of the table of stages.
function takeParts({ shape, title, begin: since, seconds, parts, rows }) {
  const suffix = document.title.slice(document.title.lastIndexOf(" · "));
  document.title = `${title}${suffix}`;
  place().dataset.shape = shape;
  for (const [name, text] of Object.entries(parts)) {
    const part = document.querySelector(`[data-part="${name}"]`);
    if (part) morph(part, parsed(`<div data-part="${name}">${text}</div>`, "[data-part]"));
  }
  for (const [name, text] of Object.entries(rows)) {
    const row = document.getElementById(`stage-${name}`);
    if (row) morph(row, parsed(`<table><tbody>${text}</tbody></table>`, "tr"));
  }
  moveTimeline(since, seconds);
  begin();
  areEventsOld = true;
  showEvents();
}

function parsed(text, selector) {
  return new DOMParser().parseFromString(text, "text/html").querySelector(selector);
}

// The list of events is long and rarely read, so it is not sent to everybody.
function showEvents() {
  if (!areEventsOld || !document.getElementById("events")?.open) return;
  areEventsOld = false;
  refresh();
}

function percent(progress) {
  const bar = document.getElementById("whole");
  if (!bar) return;
  bar.value = progress;
  put(document.getElementById("percent"), `${Math.floor(progress)} %`);
}

function stage(name, progress, text, node, status) {
  const row = document.getElementById(`stage-${name}`);
  if (row) {
    row.querySelector("progress").value = progress;
    put(row.querySelector(".told"), text);
  }
  const shown = document.querySelector(`.graph [data-node="${CSS.escape(name)}"]`);
  if (!shown) return;
  put(shown.querySelector(".under"), node);
  shown.setAttribute("class", `node is-${status}`);
  for (const edge of document.querySelectorAll(`.graph [data-from="${CSS.escape(name)}"]`)) edge.setAttribute("class", `edge is-${status}`);
  shown.querySelector(".done").setAttribute("width", (NODE * progress).toFixed(1));
}

function put(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

// Not left to the browser: it would ask again for lines that we have.
function lost() {
  stop();
  link.textContent = "The connection is lost. Trying again…";
  link.hidden = false;
  setTimeout(async () => {
    await refresh();
    if (place()?.dataset.live) start();
    else location.reload(); // it ended meanwhile: a refresh leaves the log as it is, and its last lines were not sent
  }, wait);
  wait = Math.min(LONGEST, wait * 2);
}

// A connection may be dead without anybody noticing. The page must not stay without the end of the log.
function expectEnd() {
  const open = source;
  if (open && !place()?.dataset.live) setTimeout(() => { if (source === open) location.reload(); }, LAST);
}

function begin() {
  startGrids();
  startTimeline();
  showFirst();
}

document.addEventListener("refreshed", () => { begin(); start(); expectEnd(); });
document.getElementById("events")?.addEventListener("toggle", showEvents);
addEventListener("pagehide", stop);
addEventListener("pageshow", start);
startLog([...document.querySelectorAll("[data-elements]")].map((each) => each.dataset.elements));
begin();
start();
