// The page of a job: bars and log as they move, a log to search, and files shown when somebody wants to see them.
import { following, percent } from "./following.js";

const MOST = 2000; // lines kept on the page: the whole log is a link away
const PREVIEW = 65536; // bytes of a text that are shown
const log = document.getElementById("log");
const box = document.getElementById("log-box");
const search = document.getElementById("search");
const follow = document.getElementById("follow");
let last = Number(log.dataset.last);
let elements = {};

document.documentElement.classList.add("live"); // shows what would do nothing without us
const address = document.getElementById("job").dataset.address;
if (document.querySelector("#job > .error[role=alert]")) history.replaceState(null, "", address); // a form was refused

// Stages

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

function moved(job) {
  percent(job);
  for (const [name, stage] of Object.entries(job.stages ?? {})) {
    elements[name] = stage.elements !== undefined;
    const row = document.getElementById(`stage-${name}`);
    if (!row) continue;
    row.querySelector("progress").value = stage.progress;
    row.querySelector(".told").textContent = [count(stage), stage.message, unstarted(stage)].filter(Boolean).join(" ");
  }
}

function count(stage) {
  if (stage.elements?.total) return `${number.format(stage.elements.completed)} of ${number.format(stage.elements.total)}`;
  if (stage.total === null || stage.current === null) return "";
  return `${number.format(stage.current)} of ${number.format(stage.total)}`;
}

function unstarted(stage) {
  if (!stage.reason) return "";
  const some = stage.elements?.skipped ? `${number.format(stage.elements.skipped)} not started` : "Not started";
  return `${some}: ${stage.reason}`;
}

// Log

function line(written) {
  if (written.n <= last) return;
  last = written.n;
  if (log.dataset.stage && written.stage !== log.dataset.stage) return;
  const who = elements[written.stage] ? `${written.stage}[${written.element}]` : written.stage;
  add([["at", written.at.slice(11, 19)], ["who", who], ["line", written.text]]);
}

function gap() {
  add([["line muted", "… some lines are missing here: more was printed than is kept …"]]);
}

function add(parts) {
  const item = document.createElement("li");
  for (const [name, text] of parts) {
    const part = document.createElement("span");
    part.className = name;
    part.textContent = text;
    item.append(part, " ");
  }
  item.hidden = !matches(item);
  log.append(item);
  while (log.childElementCount > MOST) log.firstElementChild.remove();
  settled();
}

let waiting = false;
function settled() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; tell(); down(); });
}

function down() {
  if (follow.checked) box.scrollTop = box.scrollHeight;
}

function matches(item) {
  return !search.value || item.textContent.toLowerCase().includes(search.value.toLowerCase());
}

function tell() {
  const all = [...log.children];
  const shown = all.filter((each) => !each.hidden).length;
  document.getElementById("matches").textContent = search.value ? `${shown} of ${all.length} ${all.length === 1 ? "line" : "lines"}` : "";
}

search.addEventListener("input", () => {
  for (const each of log.children) each.hidden = !matches(each);
  tell();
  down();
});
follow.addEventListener("change", down);
down();

// Files

document.addEventListener("toggle", (event) => {
  const place = event.target;
  if (!(place instanceof Element) || !place.matches("details.preview") || !place.open) return;
  const shown = place.querySelector(".shown");
  if (shown.childElementCount) return;
  const { kind, source, name } = place.dataset;
  if (kind === "text" || kind === "json") { text(shown, place.dataset); return; }
  const media = document.createElement(kind === "image" ? "img" : kind);
  if (kind === "image") { media.alt = name; } else { media.controls = true; media.preload = "metadata"; media.title = name; }
  media.addEventListener("error", () => say(shown, "It cannot be shown here. Download it instead."));
  media.src = source;
  shown.append(media);
}, true);

async function text(shown, { kind, source, size }) {
  const all = Number(size);
  if (all === 0) { say(shown, "It is empty."); return; }
  const answer = await fetch(source, { headers: { Range: `bytes=0-${PREVIEW - 1}` } });
  if (!answer.ok) {
    say(shown, answer.status === 429 ? "Too many downloads just now. Try again in a moment." : "It cannot be had just now.");
    return;
  }
  const pre = document.createElement("pre");
  pre.tabIndex = 0;
  pre.textContent = pretty(await answer.text(), kind === "json" && all <= PREVIEW);
  shown.replaceChildren(pre);
  if (all > PREVIEW) say(shown, "Only the beginning. Download it to see the rest.", true);
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

following(() => document.getElementById("job"), { moved, line, gap, asked: () => ({ log_after: last }) });
