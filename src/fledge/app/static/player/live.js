// Live view of a training: fetches new frames, and plays them with a short delay so that the motion is smooth.
import { shownTime } from "./build.js";
import { outcomeColours } from "./palette.js";

const POLL_MS = 700;
const KEEP_S = 25; // seconds that an episode stays after its end
const WINDOW_MS = 12000; // time over which the pace of the training is measured

export class Live {
  constructor(player) {
    this.player = player;
    this.edges = []; // [time of this page, time of the env's clock]
    this.lost = 0;
  }

  start() {
    this.running = true;
    this.player.playing = true;
    this.player.transport.drawPlay();
    this.loop();
  }

  stop() {
    this.running = false;
  }

  async loop() {
    while (this.running) {
      if (!document.hidden) {
        try {
          await this.ask();
          if (this.lost) this.player.say("");
          this.lost = 0;
        } catch (error) {
          this.lost += 1;
          this.player.say(`The server does not answer (${error.message}); trying again.`, true);
        }
      }
      await new Promise((done) => setTimeout(done, POLL_MS * Math.min(8, 1 + this.lost)));
    }
  }

  async ask() {
    const { player } = this;
    const told = await player.source.list();
    if (told.generation !== this.generation) {
      // another file: discard what is known of the old one
      this.generation = told.generation;
      player.payloads.clear();
      player.stages.clear();
      player.stageShown = null;
      this.edges = [];
      this.chosenByPerson = false;
      player.payload = null;
      await player.taskGraph.load(told.graph_script);
    }
    player.told = told;
    player.tints = outcomeColours(told);
    player.episodes.setList(told, player.tints);
    if (!told.episodes.length) {
      player.say(told.waiting ?? "Waiting for the training to show something…", true);
      return;
    }
    const open = [...player.payloads.values()].filter((payload) => payload.head.running);
    await Promise.all(open.map((payload) => player.source.more(payload)));
    await this.pick(told);
  }

  // Show an episode to its end, then the newest one, together with the others on the same map.
  async pick(told) {
    const { player } = this;
    const running = told.episodes.filter((row) => row.outcome === "running" && row.recorded > 0);
    const now = player.payload && told.episodes.find((row) => row.number === player.payload.number);
    const over = !now || (now.outcome !== "running" && player.t >= player.payload.offset + player.payload.end + 1.0);
    // a training that has stopped may have no running episode: then the newest one is shown
    const ended = player.payload ? [] : told.episodes.filter((row) => row.recorded > 0);
    const next = running.sort((a, b) => b.recorded - a.recorded)[0] ?? ended.at(-1);
    if ((over || !player.payload) && next) {
      await player.choose(next.number, false);
      this.t0 = player.payload ? player.payload.head.clock_s - player.payload.offset : 0;
      player.t = Math.max(0, this.edge() - 1.5);
      player.say("");
      return;
    }
    if (player.payload) await this.regroup(told);
  }

  async regroup(told) {
    const { player } = this;
    const row = told.episodes.find((each) => each.number === player.payload.number);
    const clock = player.t - player.payload.offset + player.payload.head.clock_s;
    const wanted = told.episodes.filter(
      (each) =>
        each.number === player.payload.number ||
        (player.shows.beside && row?.stage && each.stage === row.stage && each.recorded > 0 && (each.outcome === "running" || each.clock_s + each.seconds > clock - KEEP_S)),
    );
    const key = wanted.map((each) => `${each.number} ${each.outcome}`).join();
    for (const [number, payload] of player.payloads) {
      if (payload !== player.payload && !wanted.some((each) => each.number === number)) player.payloads.delete(number);
    }
    if (key !== this.groupKey) {
      this.groupKey = key;
      const before = player.payload.offset;
      player.told = { ...told, episodes: wanted.length ? wanted : told.episodes };
      const kept = player.t;
      await player.gather(true);
      player.t = kept + player.payload.offset - before;
      player.told = told;
      player.changed = true;
    }
    player.length = Math.max(...player.group.map((payload) => payload.offset + payload.end));
  }

  edge() {
    const running = this.player.group.filter((payload) => payload.head.running);
    const payloads = running.length ? running : this.player.group;
    return Math.max(0, ...payloads.map((payload) => payload.offset + payload.end));
  }

  advance(passed) {
    const { player } = this;
    const edge = this.edge();
    const clock = edge + (player.payload.head.clock_s - player.payload.offset);
    const now = performance.now();
    if (!this.edges.length || clock !== this.edges[this.edges.length - 1][1]) this.edges.push([now, clock]);
    while (this.edges.length > 2 && now - this.edges[0][0] > WINDOW_MS) this.edges.shift();
    if (!player.playing) return;
    const [first, last] = [this.edges[0], this.edges[this.edges.length - 1]];
    const pace = now - first[0] > 1500 ? ((last[1] - first[1]) * 1000) / (now - first[0]) : 1;
    const behind = edge - player.t;
    const wanted = Math.max(1.0, pace * 2.5); // seconds of delay, so that the motion does not stutter
    const rate = Math.max(0, pace * Math.min(2.5, Math.max(0.3, behind / wanted)));
    const step = Math.min(behind, passed * rate * player.speed);
    if (behind > 20 * wanted) player.t = edge - wanted;
    else if (step > 0) player.t += step;
    player.length = Math.max(player.length ?? 0, edge);
    player.changed = true;
  }

  clockText() {
    return `live · ${shownTime(this.player.t)} · ${Math.max(0, this.edge() - this.player.t).toFixed(1)} s behind`;
  }
}
