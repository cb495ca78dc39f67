// Keys for people who know them, and the palette: where to go by a few letters. Nothing is only reachable this way.
const PAGES = { o: "/", j: "/jobs", s: "/schedules", f: "/failures", q: "/queues", h: "/health" };
const PAUSE = 150; // ms after the last letter until jobs are searched
const CHORD = 1500; // ms between the two keys of a shortcut
const MOST = 6; // of each kind
const OFF = "packhorse_no_single_keys";

const palette = document.getElementById("palette");
const shortcuts = document.getElementById("shortcuts");
const input = palette?.querySelector("input");
const list = palette?.querySelector("ul");
const told = palette?.querySelector("p");
let known = null; // pipelines, schedules and pages: read when the palette is first opened
let chosen = 0;
let turn = 0; // of the last search: answers of earlier ones come too late
let first = 0; // when `g` was pressed

const address = (path, query = {}) => {
  const found = new URLSearchParams(query).toString();
  return `${palette.dataset.root.replace(/\/$/, "")}${path}${found ? `?${found}` : ""}`;
};

async function ask(path, query) {
  const answer = await fetch(address(`/api/v1${path}`, query), { headers: { Accept: "application/json" } });
  return answer.ok ? (await answer.json()).items : [];
}

async function readKnown() {
  const pages = [...document.querySelectorAll(".top > nav a")].map((link) => ({ kind: "Page", text: link.textContent, href: link.href }));
  const [pipelines, schedules] = await Promise.all([ask("/pipelines"), ask("/schedules", { limit: 200 })]);
  return [
    ...pages,
    ...pipelines.map((each) => ({ kind: "Pipeline", text: each.name, href: address("/jobs", { pipeline: each.name }) })),
    ...schedules.map((each) => ({ kind: "Schedule", text: each.schedule_id, href: address(`/schedules/${encodeURIComponent(each.schedule_id)}`) })),
  ];
}

function show(found) {
  chosen = 0;
  list.replaceChildren(...found.map((each, at) => {
    const item = document.createElement("li");
    item.id = `palette-${at}`;
    item.setAttribute("role", "option");
    item.dataset.href = each.href;
    const kind = document.createElement("span");
    kind.className = "muted";
    kind.textContent = each.kind;
    const text = document.createElement("bdi");
    text.textContent = each.text;
    item.append(text, kind);
    item.addEventListener("click", () => location.assign(each.href));
    return item;
  }));
  told.textContent = found.length ? "" : "Nothing found.";
  mark();
}

function mark() {
  [...list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === chosen)));
  input.setAttribute("aria-activedescendant", list.children[chosen]?.id ?? "");
  list.children[chosen]?.scrollIntoView({ block: "nearest" });
}

async function search() {
  const mine = ++turn;
  const text = input.value.trim();
  known ??= readKnown();
  const all = await known;
  const fits = all.filter((each) => each.text.toLowerCase().includes(text.toLowerCase()));
  const near = ["Page", "Pipeline", "Schedule"].flatMap((kind) => fits.filter((each) => each.kind === kind).slice(0, text ? MOST : 10));
  if (mine !== turn) return;
  show(near);
  if (!text) return;
  await new Promise((done) => setTimeout(done, PAUSE));
  if (mine !== turn) return;
  const jobs = await ask("/jobs", { q: text, limit: MOST });
  if (mine !== turn) return;
  const found = jobs.map((each) => ({ kind: `Job · ${each.status}`, text: each.source_filename ?? each.job_id, href: address(`/jobs/${each.job_id}`) }));
  show([...near, ...found, { kind: "Search", text: `Jobs found by “${text}”`, href: address("/jobs", { q: text }) }]);
}

function open() {
  input.value = "";
  palette.showModal();
  search();
}

function step(by) {
  const rows = [...document.querySelectorAll("main tbody tr, main .joblist li")].filter((row) => row.offsetParent && row.querySelector("a"));
  if (!rows.length) return;
  const here = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.min(rows.length - 1, Math.max(0, here < 0 ? 0 : here + by))];
  next.querySelector("a").focus();
}

function press(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (!palette.open) open();
    return;
  }
  const typing = event.target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable], dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || localStorage.getItem(OFF)) return;
  if (Date.now() - first < CHORD && PAGES[event.key]) { first = 0; location.assign(address(PAGES[event.key])); return; }
  first = event.key === "g" ? Date.now() : 0;
  if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
  else if (event.key === "?") shortcuts.showModal();
  else if (event.key === "/") {
    event.preventDefault();
    const field = document.getElementById("q");
    if (field) field.focus();
    else open();
  }
}

export function listen() {
  if (!palette) return; // a page for those who are not logged in
  document.addEventListener("keydown", press);
  document.querySelector("[data-palette]").addEventListener("click", (event) => { event.preventDefault(); open(); });
  input.addEventListener("input", search);
  input.addEventListener("keydown", (event) => {
    const count = list.children.length;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = count ? (chosen + (event.key === "ArrowDown" ? 1 : count - 1)) % count : 0;
      mark();
    } else if (event.key === "Enter") {
      event.preventDefault();
      const href = list.children[chosen]?.dataset.href;
      if (href) location.assign(href);
    }
  });
  palette.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
  const single = document.getElementById("single-keys");
  single.checked = !localStorage.getItem(OFF);
  single.addEventListener("change", () => (single.checked ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "1")));
}
