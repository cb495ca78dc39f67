// Many jobs, step after step, until all are done: what the button "Continue" does, pressed for you.
import { Idiomorph } from "./vendor/idiomorph.esm.js";

async function step(form) {
  const body = new URLSearchParams(new FormData(form));
  const answer = await fetch(form.action, { method: "POST", body, redirect: "manual" });
  if (answer.type === "opaqueredirect") { location.assign(form.dataset.back); return false; }
  if (!answer.ok) return false; // the button is still there
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.title = fresh.title;
  Idiomorph.morph(document.querySelector("main"), fresh.querySelector("main"));
  return true;
}

let form;
do { form = document.querySelector("[data-goes-on]"); } while (form && await step(form));
