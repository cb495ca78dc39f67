// Keeps a page fresh: after a message that something has changed, it fetches the page again and applies what differs.
import { Idiomorph } from "./vendor/idiomorph.esm.js";

const LEAST = 500; // ms between two looks, however much happens
let looking = false;
let again = false;
let last = 0;

// The page as it is now, in place of what is shown. What a person has opened, typed or chosen stays.
export async function refresh() {
  if (looking) { again = true; return; }
  looking = true;
  try {
    const wait = last + LEAST - Date.now();
    if (wait > 0) await new Promise((done) => setTimeout(done, wait));
    last = Date.now();
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") { location.reload(); return; }
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    take(document.querySelector("main"), fresh.querySelector("main"));
  } catch (error) {
    if (!(error instanceof TypeError && /fetch/i.test(error.message))) throw error;
    // The server is away: the stream that told us says so.
  } finally {
    looking = false;
    if (again) { again = false; refresh(); }
  }
}

function take(old, fresh) {
  morph(old, fresh);
  document.dispatchEvent(new CustomEvent("refreshed"));
}

export function morph(old, fresh) {
  Idiomorph.morph(old, fresh, {
    ignoreActiveValue: true,
    callbacks: {
      beforeNodeMorphed: (from) => !(from instanceof Element && from.hasAttribute("data-keep")),
      beforeNodeRemoved: (node) => !(node instanceof Element && node.classList.contains("said")),
      beforeAttributeUpdated: (name, node) =>
        !((name === "open" && node.matches("details, dialog")) ||
          (["checked", "value", "selected"].includes(name) && node.matches("input, option"))),
    },
  });
}

export function follow(address) {
  const told = document.getElementById("link");
  const source = new EventSource(address);
  source.addEventListener("changed", () => { if (!document.hidden) refresh(); });
  source.addEventListener("open", () => { told.hidden = true; });
  source.addEventListener("error", () => {
    told.textContent = "The connection is lost. Trying again…";
    told.hidden = false;
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  addEventListener("pagehide", () => source.close());
}
