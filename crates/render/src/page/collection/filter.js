const form = document.getElementById("filters");
form.hidden = false;
const apply = () => {
  const asked = Object.fromEntries(new FormData(form));
  for (const row of document.querySelectorAll("tr[data-framework]")) {
    row.hidden = asked.framework !== "" && row.dataset.framework !== asked.framework;
  }
  for (const part of document.querySelectorAll(".case")) {
    const fits = ["model", "precision"].every((name) => asked[name] === "" || part.dataset[name] === asked[name]);
    part.hidden = !fits || !part.querySelector("tr[data-framework]:not([hidden])");
  }
  for (const machine of document.querySelectorAll(".machine")) {
    machine.hidden = !machine.querySelector(".case:not([hidden])");
  }
};
form.addEventListener("change", apply);
apply();
