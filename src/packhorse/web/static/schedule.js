// The form of a schedule: another pipeline has other parameters.
document.getElementById("pipeline")?.addEventListener("change", (event) => {
  const form = event.target.form;
  const button = form.querySelector("[name=step][value=pipeline]");
  if (button && event.target.value !== form.elements.parameters_of?.value) form.requestSubmit(button);
});
