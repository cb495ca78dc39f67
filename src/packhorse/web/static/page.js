// Every page: keeps itself fresh and its times moving, and copies what is to be copied. All of it works without, by reloading.
import { moveOn } from "./ago.js";
import { follow } from "./live.js";
import { listen } from "./shortcuts.js";

document.documentElement.classList.add("live");
const live = document.body.dataset.live;
if (live) follow(live);
moveOn();
listen();

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  const text = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = text; }, 1500);
});
