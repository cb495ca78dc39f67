// The page is a client like any other: it reads /api/v1 and shows what it finds. Everything that comes from users is
// set as text, never as markup.
"use strict";

const API = new URL("../api/v1", document.currentScript.src).pathname;
const PERIOD = 2000; // milliseconds between looks at the list
const LINES = 1000; // lines of log kept on the page
const ENDED = ["completed", "failed", "cancelled"];
const EVENTS = ["submitted", "started", "stage_started", "stage_completed", "stage_failed", "retrying", "cancelling", ...ENDED];

const at = (id) => document.getElementById(id);
let timer = null; // of the list
let source = null; // of the job that is shown
let job = null;
let lines = [];
let lastLine = 0;

function made(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function row(...cells) {
  const line = made("tr");
  for (const cell of cells) {
    const td = made("td");
    td.append(cell);
    line.append(td);
  }
  return line;
}

function bar(value) {
  const element = made("progress");
  element.max = 100;
  element.value = value;
  element.title = `${value} %`;
  return element;
}

function say(text) {
  at("state").textContent = text;
}

let isRefused = false;

async function call(path, method = "GET") {
  const answer = await fetch(API + path, { method });
  const found = await answer.json();
  isRefused = answer.status === 401; // asking again and again would only look like an attack
  if (!answer.ok) throw new Error(found.detail || answer.statusText);
  return found;
}

// The list

function listed(found) {
  const link = made("a", found.job_id.slice(-12));
  link.href = `#${found.job_id}`;
  link.title = found.job_id;
  const when = made("time", new Date(found.created_at).toLocaleString());
  when.dateTime = found.created_at;
  const status = made("span", found.status, found.status);
  return row(link, found.pipeline, found.user_id, status, bar(found.progress), when);
}

async function list() {
  try {
    const page = await call("/jobs?limit=50");
    at("rows").replaceChildren(...page.items.map(listed));
    at("none").hidden = page.items.length > 0;
    older(page.next);
    say("");
  } catch (error) {
    say(error.message);
  }
  if (location.hash.length < 2 && !isRefused) timer = setTimeout(list, PERIOD);
}

function older(next) {
  at("more").hidden = next === null;
  at("more").onclick = async () => {
    clearTimeout(timer); // older jobs stay where they are while they are read
    const page = await call(`/jobs?limit=50&cursor=${encodeURIComponent(next)}`);
    at("rows").append(...page.items.map(listed));
    older(page.next);
  };
}

// One job

function stageRow([name, stage]) {
  const count = stage.total === null ? "" : ` ${stage.current}/${stage.total}`;
  const status = made("span", stage.status + count, stage.status);
  return row(name, status, bar(stage.progress), String(stage.attempt), stage.message || "");
}

function show() {
  const isOver = ENDED.includes(job.status);
  at("title").textContent = `${job.pipeline} · ${job.job_id} · ${job.stopping ? "stopping" : job.status}`;
  at("title").className = job.status;
  at("whole").value = job.progress;
  at("error").hidden = !job.error;
  at("error").textContent = job.error ? `${job.error.code}: ${job.error.message}` : "";
  at("cancel").hidden = isOver;
  at("retry").hidden = !isOver || job.status === "completed";
  at("result").hidden = job.status !== "completed";
  at("result").href = `${API}/jobs/${job.job_id}/result`;
  at("stages").replaceChildren(...Object.entries(job.stages).map(stageRow));
  at("record").textContent = JSON.stringify(job, null, 2);
}

function logged(data) {
  if (data.n <= lastLine) return; // a reconnect begins with what is known
  lastLine = data.n;
  lines.push(data.text.replace(/\n$/, ""));
  lines = lines.slice(-LINES);
  const log = at("log");
  const follows = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  log.textContent = lines.join("\n");
  if (follows) log.scrollTop = log.scrollHeight;
}

async function refresh(id) {
  const found = await call(`/jobs/${encodeURIComponent(id)}`);
  if (job && job.job_id !== found.job_id) return;
  job = found;
  show();
}

function follow(id) {
  const mine = new EventSource(`${API}/jobs/${encodeURIComponent(id)}/events`);
  source = mine;
  const on = (type, act) => mine.addEventListener(type, (event) => act(JSON.parse(event.data)));
  on("snapshot", (data) => { job = data; show(); say(""); });
  on("progress", (data) => {
    Object.assign(job, { stage: data.stage, stage_progress: data.stage_progress, progress: data.progress });
    Object.assign(job.stages, data.stages);
    show();
  });
  on("log", logged);
  for (const type of EVENTS) {
    on(type, (data) => {
      if (ENDED.includes(type) && data.n >= job.last_event) mine.close(); // an earlier run has ended, too
      refresh(id).catch((error) => say(error.message));
    });
  }
  mine.onerror = () => say("Connection lost; trying again.");
}

async function open(id) {
  job = null;
  lines = [];
  lastLine = 0;
  at("log").textContent = "";
  try {
    await refresh(id);
    follow(id);
  } catch (error) {
    say(error.message);
  }
}

async function act(verb) {
  try {
    await call(`/jobs/${encodeURIComponent(job.job_id)}/${verb}`, "POST");
    route();
  } catch (error) {
    say(error.message);
  }
}

function route() {
  clearTimeout(timer);
  if (source) source.close();
  source = null;
  say("");
  const id = decodeURIComponent(location.hash.slice(1));
  at("list").hidden = id !== "";
  at("one").hidden = id === "";
  if (id === "") list();
  else open(id);
}

at("cancel").onclick = () => act("cancel");
at("retry").onclick = () => act("retry");
window.addEventListener("hashchange", route);
route();
