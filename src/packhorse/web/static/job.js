// The page of a job: takes over what has changed, and asks for itself again only when a stage or the job begins or ends.
import { changeCells, setCells, startGrids } from "./elements.js";
import { addLines, lastLine, startLog } from "./joblog.js";
import { refresh } from "./live.js";
import { showFirst } from "./previews.js";
import { startTimeline } from "./timeline.js";

const LONGEST = 15000; // ms between tries to reach a server that is away
const STEADY = 10000; // ms after which a job that waits is looked at: its place in a queue moves without an event of its own
const LAST = 4000; // ms for the last lines of a job that the page already shows as ended
const link = document.getElementById("link");
const NODE = 1.94; // pixels of a node's bar per percent
let source = null;
let wait = 1000;
let shape = null; // of the job, as the stream has told it

function place() { return document.getElementById("job"); }

if (document.querySelector("#job > .error[role=alert]")) history.replaceState(null, "", place().dataset.address); // a form was refused

function start() {
  const address = place()?.dataset.live;
  if (source || !address) return;
  source = new EventSource(`${address}?log_after=${lastLine()}`);
  source.addEventListener("open", () => { link.hidden = true; wait = 1000; });
  source.addEventListener("error", lost);
  source.addEventListener("state", (event) => take(JSON.parse(event.data), setCells));
  source.addEventListener("delta", (event) => take(JSON.parse(event.data), changeCells));
  source.addEventListener("end", () => { stop(); refresh(); });
}

function stop() {
  source?.close();
  source = null;
}

function take(told, cells) {
  if (told.progress !== undefined) percent(told.progress);
  if (told.left !== undefined) put(document.getElementById("left"), told.left);
  for (const [name, [progress, text, node]] of Object.entries(told.stages ?? {})) stage(name, progress, text, node);
  for (const [name, changes] of Object.entries(told.cells ?? {})) cells(name, changes);
  if (told.lines) addLines(told.lines, told.gap);
  if (told.shape) { shape = told.shape; compare(); }
}

// The page is fetched again when stages or the job have begun or ended since it was made.
function compare() {
  if (shape && shape !== place().dataset.shape) refresh();
}

function percent(progress) {
  const bar = document.getElementById("whole");
  if (!bar) return;
  bar.value = progress;
  put(document.getElementById("percent"), `${Math.floor(progress)} %`);
}

function stage(name, progress, text, node) {
  const row = document.getElementById(`stage-${name}`);
  if (row) {
    row.querySelector("progress").value = progress;
    put(row.querySelector(".told"), text);
  }
  const shown = document.querySelector(`.graph [data-node="${CSS.escape(name)}"]`);
  if (!shown) return;
  put(shown.querySelector(".under"), node);
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
document.addEventListener("visibilitychange", () => { if (!document.hidden && place()?.dataset.live) refresh(); });
setInterval(() => { if (!document.hidden && document.querySelector("#job[data-live] .reasons")) refresh(); }, STEADY);
addEventListener("pagehide", stop);
addEventListener("pageshow", start);
startLog([...document.querySelectorAll("[data-elements]")].map((each) => each.dataset.elements));
begin();
start();
