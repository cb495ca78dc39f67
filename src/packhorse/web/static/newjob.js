// A new job: how far its upload is, and what is wrong with it beside the field, without a new page. Works without, too.
const form = document.getElementById("new");
const upload = document.getElementById("upload");
const bar = document.getElementById("sent");
const said = document.getElementById("sent-text");
const abort = document.getElementById("abort");
const submit = form.querySelector('button[type="submit"]');
const MIB = 1024 * 1024;

function sending(is) {
  const files = [...form.querySelectorAll('input[type="file"]')].some((each) => each.files.length);
  upload.hidden = abort.hidden = !(is && files);
  submit.disabled = is;
  form.toggleAttribute("aria-busy", is);
}

function wrong(told) {
  const error = document.getElementById("error");
  const active = document.getElementById("active");
  error.hidden = !told.error;
  error.querySelector("span").textContent = told.error ?? "";
  active.hidden = !told.active;
  if (told.active) active.href = told.active;
  document.getElementById("login").hidden = !told.login;
  for (const place of form.querySelectorAll("[data-mistake]")) {
    const field = document.getElementById(`f-${place.dataset.mistake}`);
    place.textContent = told.mistakes?.[place.dataset.mistake] ?? "";
    field.toggleAttribute("aria-invalid", Boolean(place.textContent));
    if (place.textContent) { field.setAttribute("aria-invalid", "true"); field.closest("details")?.setAttribute("open", ""); }
  }
  (form.querySelector('[aria-invalid="true"]') ?? submit).focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const body = new FormData(form);
  const address = new URL(form.action);
  const user = body.get("user_id");
  if (user) address.searchParams.set("user_id", user); // known before the first byte of a file
  body.delete("user_id");
  const request = new XMLHttpRequest();
  request.open("POST", address);
  request.setRequestHeader("Accept", "application/json");
  request.responseType = "json";
  request.upload.addEventListener("progress", (sent) => {
    if (!sent.lengthComputable) return;
    bar.value = 100 * sent.loaded / sent.total;
    said.textContent = `${(sent.loaded / MIB).toFixed(1)} of ${(sent.total / MIB).toFixed(1)} MiB`;
  });
  request.addEventListener("load", () => {
    if (request.status === 201) { location.assign(request.response.location); return; }
    sending(false);
    if (request.status === 401) {
      wrong({ error: "You are not logged in any more. Nothing was submitted, and what you typed is still here: log in again, then submit.", login: true });
      return;
    }
    wrong(request.response ?? { error: `The server answered ${request.status}.` });
  });
  request.addEventListener("error", () => {
    sending(false);
    wrong({ error: "The server could not be reached, or refused the file before it had all of it." });
  });
  request.addEventListener("abort", () => {
    sending(false);
    wrong({ error: "The upload was cancelled. Nothing was submitted." });
  });
  abort.onclick = () => request.abort();
  sending(true);
  request.send(body);
});
