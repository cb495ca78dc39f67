// A page about one job, followed by the job's own events: at once what moves, and the whole page when something happened.
import { refresh } from "./live.js";

const HAPPENED = ["submitted", "started", "stage_started", "stage_completed", "stage_failed", "stage_skipped", "retrying", "replaced", "cancelling"];
const ENDED = ["completed", "failed", "cancelled"];
const STEADY = 5000; // ms after which we look anyway: the place in a queue moves without an event of the job
const LONGEST = 15000; // ms between tries to reach a server that is away
const LAST = 3000; // ms for the last events of a job that the page already shows as ended
const link = document.getElementById("link");

// `find` gives the element that says what to follow, if there is anything; `told` is called with what moves.
export function following(find, told) {
  let source = null;
  let after = 0;
  let wait = 1000;

  function start() {
    const place = find();
    if (source || !place?.dataset.events) return;
    after = Math.max(after, Number(place.dataset.after));
    const asked = new URLSearchParams({ after, ...told.asked?.() });
    source = new EventSource(`${place.dataset.events}?${asked}`);
    source.addEventListener("open", () => { link.hidden = true; wait = 1000; });
    source.addEventListener("error", lost);
    source.addEventListener("snapshot", (event) => told.moved(JSON.parse(event.data)));
    source.addEventListener("progress", (event) => told.moved(JSON.parse(event.data)));
    source.addEventListener("log", (event) => told.line?.(JSON.parse(event.data)));
    source.addEventListener("gap", (event) => { if (JSON.parse(event.data).what === "log") told.gap?.(); });
    for (const name of HAPPENED) source.addEventListener(name, happened);
    for (const name of ENDED) source.addEventListener(name, (event) => { stop(); happened(event); });
  }

  function happened(event) {
    after = Math.max(after, Number(event.lastEventId));
    refresh();
  }

  function stop() {
    source?.close();
    source = null;
  }

  // Not left to the browser: it would ask again for lines that we have.
  function lost() {
    stop();
    link.textContent = "The connection is lost. Trying again…";
    link.hidden = false;
    setTimeout(async () => {
      await refresh();
      if (find()?.dataset.events) start();
      else location.reload(); // it ended meanwhile: a refresh leaves the log as it is, and its last lines were not sent
    }, wait);
    wait = Math.min(LONGEST, wait * 2);
  }

  // A connection may be dead without anybody noticing. The page must not stay without the end of the log.
  function expectEnd() {
    const open = source;
    if (open && !find()?.dataset.events) setTimeout(() => { if (source === open) location.reload(); }, LAST);
  }

  document.addEventListener("refreshed", () => { start(); expectEnd(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  setInterval(() => { if (!document.hidden && find()?.dataset.events) refresh(); }, STEADY);
  addEventListener("pagehide", stop);
  addEventListener("pageshow", start);
  start();
}

export function percent(job) {
  const bar = document.getElementById("whole");
  if (!bar || job.progress === undefined) return;
  bar.value = job.progress;
  document.getElementById("percent").textContent = `${Math.floor(job.progress)} %`;
}
