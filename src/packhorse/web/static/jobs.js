// The list of jobs: picking all rows of the page at once, and how many are picked. Without it, row by row, and who has
// picked none sees an error page.
const form = document.getElementById("selection");
const rows = () => [...form.querySelectorAll('input[name="id"]')];

function tell() {
  const every = document.getElementById("page-all");
  const picked = document.getElementById("picked");
  if (!every || !picked) return;
  const count = rows().filter((row) => row.checked).length;
  every.hidden = false;
  every.checked = count > 0 && count === rows().length;
  every.indeterminate = count > 0 && count < rows().length;
  const all = Boolean(document.getElementById("all")?.checked);
  picked.textContent = all ? "All jobs selected:" : `${count} selected:`;
}

form.addEventListener("change", (event) => {
  if (event.target.id === "page-all") rows().forEach((row) => { row.checked = event.target.checked; });
  tell();
});
document.addEventListener("refreshed", tell);
tell();

// Times are typed and shown in the viewer's zone; the address has them in UTC, so that it can be shared.
const filters = document.getElementById("filters");
const pad = (number) => String(number).padStart(2, "0");
const asLocal = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
const times = [...filters.querySelectorAll('input[type="datetime-local"]')];
for (const input of times) {
  const at = new Date(`${input.value}Z`);
  if (!Number.isNaN(at.getTime())) input.value = asLocal(at);
}
filters.addEventListener("formdata", ({ formData }) => {
  for (const input of times) {
    if (input.value) formData.set(input.name, new Date(input.value).toISOString().replace(".000Z", "Z"));
  }
  for (const [name, value] of [...formData]) if (!value) formData.delete(name); // a short address
});
