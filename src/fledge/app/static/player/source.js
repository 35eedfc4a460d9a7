// Where films come from: the server, or this page itself (a page that was saved).
import { Film, unpackReel } from "./film.js";

export const BEAM_FRAMES = 128; // frames whose beams are asked for at once

async function checked(response) {
  if (response.ok) return response;
  let sentence = `the server answered ${response.status}`;
  try {
    sentence = (await response.json()).error ?? sentence;
  } catch {
    // it has no sentence for us
  }
  throw new Error(sentence);
}

export class ServerSource {
  constructor(entry) {
    this.base = `/film/${encodeURIComponent(entry)}`;
  }

  async list() {
    const told = await (await checked(await fetch(this.base, { cache: "no-store" }))).json();
    this.of = told.generation; // of a live training, the file that its episodes are numbered in
    return told;
  }

  async film(number, withStage) {
    const { of } = this;
    const response = await checked(await fetch(`${this.base}/${number}?stage=${withStage ? 1 : 0}&of=${of}`));
    return Object.assign(new Film(await response.arrayBuffer()), { of });
  }

  // The frames that were flown since; whether there were any.
  async more(film) {
    const response = await checked(await fetch(`${this.base}/${film.number}?stage=0&start=${film.next}&of=${film.of}`));
    const before = film.frames;
    film.extend(await response.arrayBuffer());
    return film.frames > before;
  }

  hasGraph() {
    return true;
  }

  // What a frame means, where the world has such a graph.
  async graph(film, frame) {
    const response = await checked(await fetch(`${this.base}/${film.number}/graph?frame=${frame}&of=${film.of}`));
    return (await response.json()).graph;
  }

  async beams(film, part) {
    const start = part * BEAM_FRAMES;
    const response = await checked(
      await fetch(`${this.base}/${film.number}/beams?start=${start}&stop=${start + BEAM_FRAMES}&of=${film.of}`),
    );
    return unpackReel(await response.arrayBuffer());
  }
}

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

// `data` has list, films, beams and graphs, as export.py writes them.
export class EmbeddedSource {
  constructor(data) {
    this.data = data;
  }

  async list() {
    return this.data.list;
  }

  async film(number) {
    return new Film(await inflate(this.data.films[number]));
  }

  async more() {
    return false;
  }

  hasGraph(film) {
    return this.data.graphs?.[film.number] !== undefined;
  }

  // The graph of the last moment before a frame that has one.
  async graph(film, frame) {
    film.graphs ??= inflate(this.data.graphs[film.number]).then((bytes) => JSON.parse(new TextDecoder().decode(bytes)));
    const { frames, graphs } = await film.graphs;
    return graphs[Math.max(0, frames.findLastIndex((each) => each <= frame))];
  }

  async beams(film, part) {
    const packed = this.data.beams[film.number];
    if (!packed) return { head: { beams: null }, arrays: {} };
    if (!film.allBeams) film.allBeams = inflate(packed).then(unpackReel);
    const { head, arrays } = await film.allBeams;
    return part * BEAM_FRAMES < film.frames ? { head, arrays } : { head: { beams: null }, arrays: {} };
  }
}
