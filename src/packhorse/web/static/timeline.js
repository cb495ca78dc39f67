// The timeline of a job: grows while the job runs, and shows a part of itself when somebody drags over it.

import { runningOf } from "./elements.js";

const STEP = 1000; // ms between two steps of what runs
const LEAST = 5; // pixels that count as a drag
const SPACE = "http://www.w3.org/2000/svg";
let zoom = null; // [from, to] in seconds
let drag = null;

function table() { return document.getElementById("timeline"); }

function seconds() {
  const place = table();
  if (!document.getElementById("job").dataset.live) return Number(place.dataset.seconds);
  const ahead = Number(place.dataset.ahead ?? 0);
  return Math.max(Number(place.dataset.seconds), (Date.now() + ahead - Date.parse(place.dataset.begin)) / 1000);
}

export function startTimeline() {
  const place = table();
  if (!place) return;
  place.dataset.ahead = Date.parse(document.querySelector("main").dataset.now) - Date.now();
  draw();
}

// The run began then, and has taken so long; rows that have changed are drawn up to now.
export function moveTimeline(begin, taken) {
  const place = table();
  if (!place) return;
  place.dataset.begin = begin;
  place.dataset.seconds = taken;
  draw();
}

// Of a stage with elements: how many run now, after what the server has drawn.
function grow() {
  const now = seconds();
  for (const svg of document.querySelectorAll("#timeline svg[data-peak]")) {
    const running = runningOf(svg.closest("tr").dataset.stage);
    const drawn = Number(svg.dataset.drawn);
    svg.dataset.drawn = Math.max(drawn, now);
    if (!running || now <= drawn) continue;
    const height = Math.min(10, 9 * running / Number(svg.dataset.peak));
    const bar = svg.appendChild(document.createElementNS(SPACE, "rect"));
    for (const [name, value] of Object.entries({ class: "span is-run", x: drawn, width: now - drawn, y: 10 - height, height })) bar.setAttribute(name, value);
  }
}

function draw() {
  const [from, to] = zoom ?? [0, seconds()];
  for (const svg of document.querySelectorAll("#timeline svg.zoomed")) {
    svg.setAttribute("viewBox", `${from} 0 ${Math.max(0.001, to - from)} 10`);
    for (const live of svg.querySelectorAll(".is-live")) live.setAttribute("width", Math.max(0, seconds() - Number(live.getAttribute("x"))));
  }
  for (const each of document.querySelectorAll("#timeline [data-since]")) {
    const taken = Math.max(0, seconds() - Number(each.dataset.since));
    each.textContent = told(taken < 1 ? taken : Math.round(taken));
  }
  const axis = document.querySelector("#timeline .axis");
  const marks = [];
  const wide = Math.max(0.001, to - from);
  const step = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400].find((each) => wide / each <= 7) ?? 604800;
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    const share = 100 * (at - from) / wide;
    if (share > 93 || at === 0) continue;
    const mark = document.createElementNS(SPACE, "text");
    mark.setAttribute("x", `${share}%`);
    mark.setAttribute("y", 11);
    mark.textContent = told(at);
    marks.push(mark);
  }
  axis?.replaceChildren(...marks);
  const button = document.getElementById("unzoom");
  if (button) button.hidden = !zoom;
}

function told(at) {
  const value = Math.round(at * 1000) / 1000;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${Number(value.toFixed(2))} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min${value % 60 ? ` ${Math.round(value % 60)} s` : ""}`;
  return `${Math.floor(value / 3600)} h${value % 3600 ? ` ${Math.round(value % 3600 / 60)} min` : ""}`;
}

function share(svg, event) {
  const { left, width } = svg.getBoundingClientRect();
  const [from, to] = zoom ?? [0, seconds()];
  return from + Math.min(1, Math.max(0, (event.clientX - left) / width)) * (to - from);
}

document.addEventListener("pointerdown", (event) => {
  const svg = event.target.closest?.("#timeline svg.zoomed");
  if (!svg || event.button !== 0) return;
  event.preventDefault();
  drag = { svg, x: event.clientX, from: share(svg, event) };
  svg.setPointerCapture(event.pointerId);
});

document.addEventListener("pointermove", (event) => {
  if (!drag) return;
  drag.to = share(drag.svg, event);
  drag.mark ??= drag.svg.appendChild(document.createElementNS(SPACE, "rect"));
  drag.mark.setAttribute("class", "drag");
  drag.mark.setAttribute("height", 10);
  drag.mark.setAttribute("x", Math.min(drag.from, drag.to));
  drag.mark.setAttribute("width", Math.abs(drag.to - drag.from));
});

document.addEventListener("pointerup", (event) => {
  if (!drag) return;
  const { x, from, to, mark } = drag;
  drag = null;
  mark?.remove();
  if (Math.abs(event.clientX - x) < LEAST || to === undefined) return;
  zoom = [Math.min(from, to), Math.max(from, to)];
  draw();
});

document.addEventListener("click", (event) => {
  if (!event.target.closest?.("#unzoom")) return;
  zoom = null;
  draw();
});

setInterval(() => {
  if (!document.hidden && table() && document.getElementById("job").dataset.live) { grow(); draw(); }
}, STEP);
