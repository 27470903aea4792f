"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // Theme: the system's until the reader chooses; paper is always light.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const paint = (theme) => { root.dataset.theme = theme || (dark.matches ? "dark" : "light"); };
  dark.addEventListener("change", () => paint(chosen));
  addEventListener("beforeprint", () => paint("light"));
  addEventListener("afterprint", () => paint(chosen));
  paint(chosen);

  document.addEventListener("DOMContentLoaded", () => {
    theme();
    tips();
    plans();
    memory();
    table();
  });

  function theme() {
    const button = document.getElementById("theme");
    button.addEventListener("click", () => {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      paint(chosen);
    });
  }

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");

  function say(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8));
    const above = y - box.height - 12;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : y + 18}px`;
  }

  function tips() {
    document.body.append(tip);
    const find = (event) => event.target.closest ? event.target.closest("[data-tip]") : null;
    document.addEventListener("pointerover", (event) => {
      const at = find(event);
      if (at) say(at.dataset.tip, event.clientX, event.clientY);
      else tip.hidden = true;
    });
    document.addEventListener("focusin", (event) => {
      const at = find(event);
      if (!at) return;
      const box = at.getBoundingClientRect();
      say(at.dataset.tip, box.right, box.top);
    });
    document.addEventListener("focusout", () => { tip.hidden = true; });
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
  }

  // One plan's panel is open at a time; rows, marks and links all choose it.
  function plans() {
    const picker = document.getElementById("picker");
    if (!picker) return;
    const open = (id, move) => {
      if (!document.getElementById(id)) return;
      picker.value = id;
      document.querySelectorAll(".panel").forEach((at) => at.classList.toggle("open", at.id === id));
      document.querySelectorAll("tr[data-plan]").forEach((at) => at.classList.toggle("chosen", at.dataset.plan === id));
      if (move) document.getElementById("plans").scrollIntoView();
    };
    picker.addEventListener("change", () => open(picker.value, false));
    document.addEventListener("click", (event) => {
      const at = event.target.closest("[data-plan]");
      if (at) open(at.dataset.plan, !at.matches("tr"));
    });
    const asked = location.hash.slice(1);
    open(document.getElementById(asked) ? asked : picker.dataset.first, false);
    addEventListener("hashchange", () => {
      const panel = document.getElementById(location.hash.slice(1));
      if (panel && panel.classList.contains("panel")) open(panel.id, true);
    });
  }

  // The memory line tells what runs under the pointer.
  function memory() {
    document.querySelectorAll("[data-hover]").forEach((area) => {
      let data = null;
      const cursor = area.querySelector(".cursor");
      const leave = () => { cursor.hidden = true; tip.hidden = true; };
      area.addEventListener("pointerleave", leave);
      area.addEventListener("pointermove", (event) => {
        data = data || JSON.parse(document.getElementById(area.dataset.hover).textContent);
        const box = area.getBoundingClientRect();
        const share = (event.clientX - box.left) / box.width;
        const at = data.columns[Math.floor(share * data.columns.length)];
        if (!at) { leave(); return; }
        cursor.hidden = false;
        cursor.style.left = `${100 * share}%`;
        const owners = data.owners.map((name, index) => [name, at[index + 1]]);
        const total = owners.reduce((sum, [, bytes]) => sum + bytes, 0);
        const lines = owners.filter(([, bytes]) => bytes > 0).reverse()
          .map(([name, bytes]) => `${mega(bytes)} ${name}`);
        say(`${mega(total)} at ${clock(at[0])}\n${data.ops[at[at.length - 1]]}\n${lines.join("\n")}`,
          event.clientX, event.clientY);
      });
    });
  }

  const mega = (bytes) => bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e3).toFixed(1)} kB`;
  const clock = (seconds) => seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(seconds * 1e3).toFixed(2)} ms`;

  // The index: rows are sorted and filtered in place.
  function table() {
    const rows = document.getElementById("runs");
    if (!rows) return;
    const body = rows.tBodies[0];
    const all = [...body.rows];
    const search = document.getElementById("search");
    const selects = [...document.querySelectorAll(".filters select[data-key]")];
    const shown = document.getElementById("shown");
    const filter = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const row of all) {
        const text = row.dataset.text;
        const fits = words.every((word) => text.includes(word))
          && selects.every((at) => !at.value || row.dataset[at.dataset.key] === at.value);
        row.hidden = !fits;
        left += fits ? 1 : 0;
      }
      shown.textContent = `${left.toLocaleString("en")} of ${all.length.toLocaleString("en")} rows`;
    };
    search.addEventListener("input", filter);
    selects.forEach((at) => at.addEventListener("change", filter));
    filter();

    const heads = [...rows.tHead.rows[0].cells];
    const sort = (column, down) => {
      const value = (row) => row.cells[column].dataset.value;
      const numbers = heads[column].classList.contains("number");
      const ordered = [...all].sort((one, other) => {
        const [a, b] = [value(one), value(other)];
        if (a === "" || b === "") return (a === "" ? 1 : 0) - (b === "" ? 1 : 0);
        const order = numbers ? a - b : a.localeCompare(b, "en", { numeric: true });
        return down ? -order : order;
      });
      heads.forEach((head, index) => {
        head.setAttribute("aria-sort", index !== column ? "none" : down ? "descending" : "ascending");
      });
      body.append(...ordered);
    };
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (button) button.addEventListener("click", () => sort(column, head.getAttribute("aria-sort") === "ascending"));
    });
  }
})();
