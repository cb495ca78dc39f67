// The grid of a stage's elements: drawn again where something has changed, and one element shown below it when asked for.
// A cell is a dash of a line, so that ten thousand cost a few hundred paths. Rows are drawn in bands: a change draws one.

const LETTERS = "cfrapxs";
const NAMES = { c: "completed", f: "failed", r: "running", a: "waiting for its retry", p: "pending", x: "cancelled", s: "not started" };
const PITCH = 10; // as the server draws it
const BAND = 8; // rows
const SPACE = "http://www.w3.org/2000/svg";
const grids = new Map();
const number = new Intl.NumberFormat("en");

export function startGrids() {
  for (const box of document.querySelectorAll(".cells-box")) {
    const old = grids.get(box.dataset.stage);
    if (old?.box !== box) grids.set(box.dataset.stage, new Grid(box));
  }
}

// All of it, as a stream begins; or from some elements on, other letters.
export function setCells(stage, packed) { grids.get(stage)?.set(unpack(packed)); }
export function changeCells(stage, changes) { grids.get(stage)?.change(changes); }

export function runningOf(stage) { return grids.get(stage)?.counts.r ?? 0; }

function unpack(packed) {
  return [...packed.matchAll(/(\d+)([a-z])/g)].map(([, count, letter]) => letter.repeat(Number(count))).join("");
}

class Grid {
  constructor(box) {
    this.box = box;
    this.section = box.closest("section");
    this.svg = box.querySelector("svg");
    this.cells = [...unpack(box.dataset.cells)];
    this.isDirty = new Set();
    this.isWaiting = false;
    this.spot = -1;
    this.counts = Object.fromEntries([...LETTERS].map((letter) => [letter, this.cells.filter((each) => each === letter).length]));
    this.lay();
    new ResizeObserver(() => this.lay()).observe(box);
    this.svg.addEventListener("click", (event) => this.open(this.at(event)));
    this.svg.addEventListener("pointermove", (event) => this.hint(this.at(event)));
    this.section.querySelector(".pick-element").addEventListener("submit", (event) => {
      event.preventDefault();
      this.open(Number(event.target.elements.element.value));
    });
    this.section.addEventListener("click", (event) => {
      const link = event.target.closest(".pick-element a");
      if (!link || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      this.open(Number(new URL(link.href).searchParams.get("element")));
    });
  }

  // As many in a row as fit: a cell keeps a size that can be seen and hit.
  lay() {
    const least = this.cells.length <= 60 ? 22 : this.cells.length <= 400 ? 16 : this.cells.length <= 2000 ? 12 : 8;
    const width = this.box.clientWidth - 20;
    const columns = Math.max(1, Math.min(this.cells.length, Math.floor(width / least)));
    if (columns === this.columns || width <= 0) return;
    this.columns = columns;
    const rows = Math.ceil(this.cells.length / columns);
    this.svg.setAttribute("viewBox", `0 0 ${columns * PITCH} ${rows * PITCH}`);
    this.svg.setAttribute("width", columns * least);
    this.svg.setAttribute("height", rows * least);
    this.svg.classList.add("is-laid");
    this.bands = [];
    for (let row = 0; row < rows; row += BAND) {
      const band = document.createElementNS(SPACE, "g");
      this.bands.push({ band, paths: {}, row });
    }
    this.svg.replaceChildren(...this.bands.map((each) => each.band));
    this.bands.forEach((_, at) => this.draw(at));
    this.mark();
  }

  draw(at) {
    const { band, paths, row: first } = this.bands[at];
    const lines = {};
    const end = Math.min(this.cells.length, (first + BAND) * this.columns);
    for (let start = first * this.columns, row = first; start < end; start += this.columns, row++) {
      const stop = Math.min(end, start + this.columns);
      for (let run = start; run < stop;) {
        const letter = this.cells[run];
        let next = run + 1;
        while (next < stop && this.cells[next] === letter) next++;
        lines[letter] = `${lines[letter] ?? ""}M${(run - start) * PITCH + 1} ${row * PITCH + 5}h${(next - run) * PITCH - 2}`;
        run = next;
      }
    }
    for (const letter of LETTERS) {
      if (lines[letter] && !paths[letter]) {
        paths[letter] = document.createElementNS(SPACE, "path");
        paths[letter].setAttribute("class", `is-${letter}`);
        band.append(paths[letter]);
      }
      paths[letter]?.setAttribute("d", lines[letter] ?? "");
    }
  }

  set(text) {
    if (text.length !== this.cells.length) return; // the page is about to be loaded again
    this.change([[0, text]]);
  }

  change(changes) {
    for (const [from, text] of changes) {
      for (let n = 0; n < text.length; n++) {
        const at = from + n;
        if (at >= this.cells.length || this.cells[at] === text[n]) continue;
        this.counts[this.cells[at]]--;
        this.counts[text[n]]++;
        this.cells[at] = text[n];
        this.isDirty.add(Math.floor(at / this.columns / BAND));
      }
    }
    if (this.isWaiting || !this.isDirty.size) return;
    this.isWaiting = true;
    requestAnimationFrame(() => { this.isWaiting = false; this.flush(); });
  }

  flush() {
    for (const at of this.isDirty) if (this.bands[at]) this.draw(at);
    this.isDirty.clear();
    const told = [];
    for (const letter of LETTERS) {
      const label = this.section.querySelector(`.show .of-${letter}`);
      label.hidden = !this.counts[letter];
      label.querySelector(".count").textContent = number.format(this.counts[letter]);
      if (this.counts[letter]) told.push(`${number.format(this.counts[letter])} ${NAMES[letter]}`);
    }
    this.svg.setAttribute("aria-label", `Elements of ${this.box.dataset.stage}: ${told.join(", ")}`);
  }

  at(event) {
    const { left, top, width, height } = this.svg.getBoundingClientRect();
    const rows = Math.ceil(this.cells.length / this.columns);
    const column = Math.floor((event.clientX - left) / width * this.columns);
    const at = Math.floor((event.clientY - top) / height * rows) * this.columns + column;
    return column >= 0 && column < this.columns && at >= 0 && at < this.cells.length ? at : -1;
  }

  hint(at) {
    if (!this.title) this.title = document.createElementNS(SPACE, "title");
    if (this.title.parentNode !== this.svg) this.svg.append(this.title);
    const text = at < 0 ? "" : `${this.box.dataset.stage}[${at}]: ${NAMES[this.cells[at]]}`;
    if (this.title.textContent !== text) this.title.textContent = text;
  }

  mark() {
    this.ring?.remove();
    if (this.spot < 0) return;
    this.ring = document.createElementNS(SPACE, "path");
    this.ring.setAttribute("class", "spot");
    const x = this.spot % this.columns * PITCH;
    const y = Math.floor(this.spot / this.columns) * PITCH;
    this.ring.setAttribute("d", `M${x} ${y}h10v10h-10z`);
    this.svg.append(this.ring);
  }

  // It is a page of its own, and its part of it is put below the grid.
  async open(at) {
    if (!(at >= 0 && at < this.cells.length)) return;
    const address = `${this.box.dataset.address}&element=${at}`;
    const answer = await fetch(address, { headers: { Accept: "text/html" } });
    if (!answer.ok) { location.assign(address); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const place = this.section.querySelector(".element-box");
    const shown = page.getElementById("element");
    for (const old of document.querySelectorAll(".element-box")) old.replaceChildren();
    place.replaceChildren(shown);
    shown.tabIndex = -1;
    shown.focus({ preventScroll: true });
    shown.scrollIntoView({ block: "nearest" });
    this.spot = at;
    this.mark();
    this.section.querySelector(".pick-element [name=element]").value = at;
    shown.addEventListener("click", (event) => {
      const link = event.target.closest(".choices a");
      if (!link) return;
      event.preventDefault();
      this.open(Number(new URL(link.href).searchParams.get("element")));
    });
  }
}
