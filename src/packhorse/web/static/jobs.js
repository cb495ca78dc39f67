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
  const all = document.getElementById("all").checked;
  picked.textContent = all ? "All jobs selected:" : count ? `${count} selected:` : "No jobs selected";
  for (const button of form.querySelectorAll('button[name="do"]')) button.disabled = !all && !count;
}

form.addEventListener("change", (event) => {
  if (event.target.id === "page-all") rows().forEach((row) => { row.checked = event.target.checked; });
  tell();
});
document.addEventListener("refreshed", tell);
tell();
