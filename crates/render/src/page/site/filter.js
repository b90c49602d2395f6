const form = document.getElementById("filters");
const shown = document.getElementById("shown");
form.hidden = false;
const apply = () => {
  const asked = [...new FormData(form)].filter(([, value]) => value !== "");
  let count = 0;
  for (const row of document.querySelectorAll("tr[data-fields]")) {
    const fields = JSON.parse(row.dataset.fields);
    row.hidden = !asked.every(([name, value]) => fields[name].includes(value));
    count += row.hidden ? 0 : 1;
  }
  shown.textContent = count === 1 ? "1 result" : `${count} results`;
};
form.addEventListener("change", apply);
apply();
