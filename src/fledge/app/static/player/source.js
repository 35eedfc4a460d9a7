// Sources of episodes: the server, or the data inside a saved page.
import { EpisodePayload, unpackPayload } from "./episode_payload.js";

export const BEAM_FRAMES = 128; // frames whose beams are asked for at once

async function checked(response) {
  if (response.ok) return response;
  let sentence = `the server answered ${response.status}`;
  try {
    sentence = (await response.json()).error ?? sentence;
  } catch {
    // the answer has no message
  }
  throw new Error(sentence);
}

export class ServerSource {
  constructor(entry) {
    this.base = `/recordings/${encodeURIComponent(entry)}`;
  }

  async list() {
    const told = await (await checked(await fetch(this.base, { cache: "no-store" }))).json();
    this.of = told.generation; // for a live training, the file that holds the listed episodes
    return told;
  }

  async episode(number, withStage) {
    const { of } = this;
    const response = await checked(await fetch(`${this.base}/${number}?stage=${withStage ? 1 : 0}&of=${of}`));
    return Object.assign(new EpisodePayload(await response.arrayBuffer()), { of });
  }

  // Load the frames that were added since the last call; return whether there were any.
  async more(payload) {
    const response = await checked(await fetch(`${this.base}/${payload.number}?stage=0&start=${payload.next}&of=${payload.of}`));
    const before = payload.frames;
    payload.extend(await response.arrayBuffer());
    return payload.frames > before;
  }

  hasGraph() {
    return true;
  }

  // Return the task's graph of a frame.
  async graph(payload, frame) {
    const response = await checked(await fetch(`${this.base}/${payload.number}/graph?frame=${frame}&of=${payload.of}`));
    return (await response.json()).graph;
  }

  async beams(payload, part) {
    const start = part * BEAM_FRAMES;
    const response = await checked(
      await fetch(`${this.base}/${payload.number}/beams?start=${start}&stop=${start + BEAM_FRAMES}&of=${payload.of}`),
    );
    return unpackPayload(await response.arrayBuffer());
  }
}

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

// `data` has list, payloads, beams and graphs, as exporters/html.py writes them.
export class EmbeddedSource {
  constructor(data) {
    this.data = data;
  }

  async list() {
    return this.data.list;
  }

  async episode(number) {
    return new EpisodePayload(await inflate(this.data.payloads[number]));
  }

  async more() {
    return false;
  }

  hasGraph(payload) {
    return this.data.graphs?.[payload.number] !== undefined;
  }

  // Return the newest graph at or before a frame.
  async graph(payload, frame) {
    payload.graphs ??= inflate(this.data.graphs[payload.number]).then((bytes) => JSON.parse(new TextDecoder().decode(bytes)));
    const { frames, graphs } = await payload.graphs;
    return graphs[Math.max(0, frames.findLastIndex((each) => each <= frame))];
  }

  async beams(payload, part) {
    const packed = this.data.beams[payload.number];
    if (!packed) return { head: { beams: null }, arrays: {} };
    if (!payload.allBeams) payload.allBeams = inflate(packed).then(unpackPayload);
    const { head, arrays } = await payload.allBeams;
    return part * BEAM_FRAMES < payload.frames ? { head, arrays } : { head: { beams: null }, arrays: {} };
  }
}
