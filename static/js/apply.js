// Apply a suggestion of what would start now to the form: the GPU type of all pods with GPUs, or the
// count of the only pod set. The form then previews the job again.
(() => {
  const form = document.getElementById("job-form");

  const set = (field, value) => {
    field.value = value;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-apply]");
    if (!button) return;
    const changed = [];
    for (const [name, value] of Object.entries(button.dataset)) {
      if (name === "apply") continue;
      for (const field of form.querySelectorAll(`[name^="sets-"][name$="-${name}"]`)) {
        const gpus = form.elements[field.name.replace(`-${name}`, "-gpus")];
        if (name === "gpu_type" && Number(gpus.value) === 0) continue;
        set(field, value);
        changed.push(field);
      }
    }
    // The button disappears with the answer that contains it.
    changed[0]?.focus();
  });
})();
