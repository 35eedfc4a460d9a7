// Sources of the page's data: the server, or the data inside a saved page.
//
// A source has runs(), curves(id), settings(ids), checkpoints(id) and doctor(id), all promises; `live` is true if the
// data may change. curves() returns all points: a live source fetches only the new ones and keeps the rest.

export class SavedSource {
  constructor(data) {
    this.data = data;
    this.live = false;
  }

  async runs() {
    return this.data.runs.map((each) => each.run);
  }

  async curves(id) {
    return this.data.runs.find((each) => each.run.id === id);
  }

  async settings(ids) {
    const { runs, rows, troubles } = this.data.settings;
    const places = ids.map((id) => runs.indexOf(id));
    const chosen = rows.map((row) => ({ key: row.key, values: places.map((place) => row.values[place]) }));
    for (const row of chosen) row.differs = new Set(row.values).size > 1;
    return { runs: ids, rows: chosen, troubles };
  }

  async checkpoints(id) {
    return this.data.checkpoints[id]?.files ?? [];
  }

  async doctor(id) {
    return this.data.checkpoints[id]?.doctor ?? { trouble: "The checkpoints were not examined when this page was saved." };
  }
}

export class LiveSource {
  constructor() {
    this.live = true;
    this.kept = new Map();
  }

  async ask(path) {
    const answer = await fetch(path, { headers: { accept: "application/json" } });
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).trouble ?? `the server said ${answer.status}`);
    return answer.json();
  }

  async runs() {
    return (await this.ask("/api/runs")).runs;
  }

  async curves(id) {
    const old = this.kept.get(id)?.curves;
    const known = old ? `?generation=${old.generation}&start=${Math.max(old.x.step.length - 1, 0)}` : "";
    const found = await this.ask(`/api/runs/${encodeURIComponent(id)}${known}`);
    if (old && found.curves.start > 0) found.curves = joined(old, found.curves);
    this.kept.set(id, found);
    return found;
  }

  forget(ids) {
    for (const id of this.kept.keys()) if (!ids.includes(id)) this.kept.delete(id);
  }

  settings(ids) {
    return this.ask(`/api/settings?ids=${ids.map(encodeURIComponent).join(",")}`);
  }

  async checkpoints(id) {
    return (await this.ask(`/api/checkpoints/${encodeURIComponent(id)}`)).files;
  }

  doctor(id) {
    return this.ask(`/api/doctor/${encodeURIComponent(id)}`);
  }
}

// Append new points to the known ones, which they may overlap.
function joined(old, fresh) {
  const count = fresh.start;
  const total = count + fresh.x.step.length;
  const behind = (before, after) => {
    const head = (before ?? []).slice(0, count);
    while (head.length < count) head.push(null); // a metric that came later
    return head.concat(after ?? new Array(total - count).fill(null));
  };
  const x = {};
  for (const name of Object.keys(fresh.x)) x[name] = behind(old.x[name], fresh.x[name]);
  const values = {};
  for (const name of Object.keys(fresh.values)) {
    values[name] = {};
    for (const part of Object.keys(fresh.values[name])) {
      values[name][part] = behind(old.values[name]?.[part], fresh.values[name][part]);
    }
  }
  return { ...fresh, start: 0, x, values };
}
