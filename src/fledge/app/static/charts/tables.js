// Settings of runs side by side, and their checkpoints.
import { make, megabytes } from "./format.js";

export function table(heads, rows) {
  const element = make("table", "ft-table");
  const head = make("tr");
  for (const text of heads) {
    const cell = make("th", "", text);
    cell.scope = "col";
    head.append(cell);
  }
  const body = make("tbody");
  body.append(...rows);
  const top = make("thead");
  top.append(head);
  element.append(top, body);
  const around = make("div", "ft-scroll");
  around.append(element);
  return around;
}

export function showSettings(place, settings, names) {
  const several = names.length > 1;
  const differing = settings.rows.filter((row) => row.differs).length;
  const bar = make("div", "ft-bar");
  const find = make("input", "fl-field");
  Object.assign(find, { type: "search", placeholder: "Find a setting" });
  find.setAttribute("aria-label", "Find a setting");
  bar.append(find);
  const only = make("input");
  if (several) {
    const label = make("label", "ft-only");
    only.type = "checkbox";
    only.checked = differing > 0;
    label.append(only, make("span", "", ` only differences (${differing})`));
    bar.append(label);
  }
  const rows = settings.rows.map((row) => {
    const line = make("tr", row.differs ? "ft-differs" : "");
    const key = make("th", "", row.key);
    key.scope = "row";
    line.append(key, ...row.values.map((value) => make("td", value === null ? "fl-note" : "", value ?? "not set")));
    return line;
  });
  const filter = () => {
    rows.forEach((line, k) => {
      const row = settings.rows[k];
      line.hidden = !row.key.includes(find.value.trim()) || (several && only.checked && !row.differs);
    });
  };
  find.addEventListener("input", filter);
  only.addEventListener("change", filter);
  filter();
  const troubles = settings.troubles.map((text) => make("p", "fl-error", text));
  place.replaceChildren(bar, ...troubles, table(["setting", ...names], rows));
}

export async function showCheckpoints(place, source, ids, names) {
  const parts = await Promise.all(
    ids.map(async (id, k) => {
      const part = make("section", "fl-panel ft-files");
      const files = await source.checkpoints(id);
      const total = files.reduce((sum, file) => sum + file.bytes, 0);
      part.append(make("h2", "", names[k]));
      const count = files.length === 1 ? "1 file" : `${files.length} files`;
      part.append(make("p", "fl-note", files.length ? `${count}, ${megabytes(total)}` : "Nothing saved yet."));
      if (files.length) part.append(examination(source, id), sizes(files));
      return part;
    }),
  );
  place.replaceChildren(...parts);
}

// A button that runs `fledge doctor`, which reads every byte.
function examination(source, id) {
  const around = make("div");
  const button = make("button", "fl-button ft-doctor", "Verify checkpoints (fledge doctor)");
  const told = make("pre", "ft-told");
  told.hidden = true;
  told.setAttribute("role", "status");
  const ask = async () => {
    button.disabled = true;
    told.hidden = false;
    told.textContent = "Reading every checkpoint …";
    try {
      const report = await source.doctor(id);
      told.textContent = report.trouble ?? report.lines.join("\n");
      told.classList.toggle("fl-error", report.healthy === false);
      told.classList.toggle("fl-good", report.healthy === true);
    } catch (error) {
      told.textContent = `The checkpoints could not be verified: ${error.message}`;
    }
    button.disabled = false;
  };
  button.type = "button";
  button.addEventListener("click", ask);
  around.append(button, told);
  if (!source.live) {
    button.hidden = true;
    ask();
  }
  return around;
}

function sizes(files) {
  const most = Math.max(...files.map((file) => file.bytes), 1);
  const rows = [...files].reverse().map((file) => {
    const line = make("tr");
    const bar = make("span", "ft-size");
    bar.style.width = `${(100 * file.bytes) / most}%`;
    const cell = make("td", "ft-bar-cell");
    cell.append(bar);
    const when = new Date(1000 * file.changed).toISOString().replace("T", " ").slice(0, 19);
    line.append(make("td", "", file.file), make("td", "ft-number", megabytes(file.bytes)), cell, make("td", "", `${when} UTC`));
    return line;
  });
  return table(["checkpoint", "size", "", "written"], rows);
}
