// The last hour, drawn.
import { h, s, clock, lasting, plural } from './dom.js';
import { world } from './live.js';
import { nothing } from './pool.js';

/** What is drawn: the time in which this gateway has watched, ten minutes at least. */
function span(t) {
  const from = Math.max(t.from, Math.min(t.since, t.to - 600000));
  const skip = Math.floor((from - t.from) / t.step);
  return { since: t.since, from: t.from + skip * t.step, to: t.to, step: t.step, skip, group: t.to - from > 1200000 ? 6 : 1 };
}

const at = (w, ms) => `${(100 * (Math.max(ms, w.from) - w.from) / (w.to - w.from)).toFixed(3)}%`;
const long = (w, ms) => `${(100 * ms / (w.to - w.from)).toFixed(3)}%`;

/** Lines at round times, with their clock below where there is room for it. */
function axis(w, height, words) {
  const every = w.to - w.from > 1200000 ? 10 * 60000 : 2 * 60000;
  const out = [];
  for (let ms = Math.ceil(w.from / every) * every; ms < w.to; ms += every) {
    out.push(s('line', { class: 'grid', x1: at(w, ms), x2: at(w, ms), y1: 0, y2: height }));
    if (words && ms - w.from > 0.03 * (w.to - w.from) && w.to - ms > 0.03 * (w.to - w.from)) out.push(s('text', { x: at(w, ms), y: height + 14, 'text-anchor': 'middle' }, clock(ms)));
  }
  return out;
}

/** Merges the steps in groups that are legible at any width. */
function grouped(w, list, merge) {
  const out = [];
  for (let i = w.skip; i < list.length; i += w.group) out.push(merge(list.slice(i, i + w.group)));
  return out;
}

const sum = (list) => list.reduce((a, b) => a + b, 0);

function chart(w, title, unit, values, over, overTitle) {
  const height = 72;
  const top = Math.max(...values, 0);
  const width = w.step * w.group;
  const bars = (list, kind) => list.map((v, i) => v > 0 && s('rect', { class: kind, x: at(w, w.from + i * width + width / 10), width: long(w, width * 0.8), y: height - height * v / top, height: height * v / top }));
  return h('figure', { 'data-key': `f-${title}` },
    h('figcaption', {}, title, h('span', { class: 'num' }, top ? `up to ${format(top)} ${unit}` : 'none'), over && h('span', { class: 'legend' }, h('span', { class: 'swatch' }), overTitle)),
    s('svg', { class: 'chart', width: '100%', height: height + 18, role: 'img', 'aria-label': `${title}: highest ${top ? format(top) : 0} ${unit}` },
      unwatched(w, height), axis(w, height, true), s('line', { class: 'grid', x1: 0, x2: '100%', y1: height, y2: height }), bars(values, 'value'), over && bars(over, 'over')));
}

const format = (v) => v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2);

const price = (v) => `$${v.toFixed(v >= 1 ? 2 : 4)}`;

/** The time before this gateway watched, which must not look like one without requests. */
const unwatched = (w, height) => w.since - w.from > 0.25 * (w.to - w.from) && s('text', { class: 'unwatched', x: long(w, (w.since - w.from) / 2), y: height / 2 + 4, 'text-anchor': 'middle' }, 'not watched');

function strip(w, x) {
  const spans = x.turns.map((turn, i) => {
    const end = x.turns[i + 1]?.at ?? w.to;
    return end > w.from && s('rect', { class: `span ${turn.state}`, x: at(w, turn.at), width: long(w, end - Math.max(turn.at, w.from)), y: 4, height: 24 },
      s('title', {}, `${turn.state} from ${clock(turn.at)}${i + 1 < x.turns.length ? ` to ${clock(end)}` : ''}`));
  });
  const marks = x.marks.map((m) => {
    const words = `${clock(m.at)} ${m.kind} ${m.model}${m.load_ms ? ` in ${lasting(m.load_ms)}` : ''}`;
    return s('line', { class: `event ${m.kind}`, x1: at(w, m.at), x2: at(w, m.at), y1: m.kind === 'load' ? 4 : 16, y2: m.kind === 'load' ? 16 : 28 }, s('title', {}, words));
  });
  const kinds = Object.entries(count(x.marks)).map(([k, n]) => plural(n, k)).join(', ');
  return h('figure', { class: 'strip', 'data-key': `s-${x.host}` },
    h('figcaption', {}, h('span', { class: 'model' }, x.host), h('span', { class: 'num' }, `awake ${lasting(x.awake)}${kinds ? `, ${kinds}` : ''}`)),
    s('svg', { class: 'chart', width: '100%', height: 46, role: 'img', 'aria-label': `${x.host}: awake ${lasting(x.awake)}, now ${x.turns.at(-1)?.state ?? 'asleep'}; ${kinds || 'no loads'}` }, unwatched(w, 28), spans, axis(w, 28, true), marks));
}

const nouns = { evict: 'eviction', failed: 'failure' };

function count(marks) {
  const out = {};
  for (const { kind } of marks) out[nouns[kind] ?? kind] = (out[nouns[kind] ?? kind] ?? 0) + 1;
  return out;
}

function recent(t) {
  const rows = t.hosts.flatMap((x) => x.marks).sort((a, b) => b.at - a.at).slice(0, 30);
  return h('section', { class: 'panel', 'data-key': 'recent', 'aria-labelledby': 'recent-title' },
    h('h2', { id: 'recent-title' }, 'Latest loads and evictions'),
    rows.length ? h('div', { class: 'scroll tall', tabindex: '0', role: 'region', 'aria-labelledby': 'recent-title' }, h('table', {},
      h('thead', {}, h('tr', {}, ['Time', 'Host', 'What', 'Model', 'Took'].map((c) => h('th', { scope: 'col' }, c)))),
      h('tbody', {}, rows.map((m, i) => h('tr', { 'data-key': `r-${m.at}-${m.model}-${m.kind}-${i}` },
        h('td', { class: 'num' }, new Date(m.at).toLocaleTimeString([], { hour12: false })), h('td', {}, m.host), h('td', {}, h('span', { class: `stage ${m.kind}` }, m.kind)), h('td', {}, h('span', { class: 'model' }, m.model)),
        h('td', { class: 'num' }, m.load_ms ? `${(m.load_ms / 1000).toFixed(1)} s` : '–'))))))
      : h('p', { class: 'muted' }, 'None in the last hour.'));
}

/** The month by host, from the pool's counters. */
function month(m) {
  const columns = ['Host', 'Awake', 'Idle', 'Wakes', 'Failed', 'Cost', 'Always on'];
  const hours = (s) => `${(s / 3600).toFixed(1)} h`;
  const cells = (r) => [hours(r.awake_seconds), hours(r.idle_seconds), r.wakes, r.failed_wakes, price(r.cost), price(r.always_on)].map((v) => h('td', { class: 'num' }, v));
  return h('section', { class: 'panel', 'data-key': 'month', 'aria-labelledby': 'month-title' },
    h('h2', { id: 'month-title' }, `Month ${m.month} (UTC)`),
    m.rows.length ? h('div', { class: 'scroll tall', tabindex: '0', role: 'region', 'aria-labelledby': 'month-title' }, h('table', {},
      h('thead', {}, h('tr', {}, columns.map((c) => h('th', { scope: 'col' }, c)))),
      h('tbody', {}, [...m.rows, m.total].map((r) => h('tr', { 'data-key': `m-${r.name}` }, h('th', { scope: 'row' }, r.name), cells(r))))))
      : h('p', { class: 'muted' }, 'Nothing has been counted yet.'));
}

/** The view's elements. */
export function timelineView() {
  const t = world.history;
  if (!t) return [h('h1', { class: 'unseen' }, 'Timeline'), h('p', { class: 'empty' }, nothing())];
  const w = span(t);
  const perSecond = (list) => grouped(w, list, (g) => sum(g) / (g.length * t.step / 1000));
  const first = grouped(w, t.first, (g) => {
    const known = g.filter((v) => v >= 0);
    return known.length ? sum(known) / known.length / 1000 : 0;
  });
  const marks = count(t.hosts.flatMap((x) => x.marks));
  const awake = sum(t.hosts.map((x) => x.awake));
  const facts = [[sum(t.rate), 'answer'], [sum(t.cold), 'cold start'], [marks.load ?? 0, 'load'], [marks.eviction ?? 0, 'eviction'], [(awake / 3.6e6).toFixed(2), 'host hour']];
  return [
    h('h1', { class: 'unseen' }, 'Timeline'),
    h('dl', { class: 'facts', 'data-key': 'facts' }, facts.map(([n, what]) => h('div', {}, h('dt', {}, n === 1 ? what : `${what}s`), h('dd', {}, n)))),
    t.always > 0 && h('p', { class: 'money', 'data-key': 'money' }, 'By their price, hosts cost ', h('strong', {}, price(t.spent)), ' in this time; always on they would have cost ', h('strong', {}, price(t.always)),
      ` (${Math.round(100 * Math.max(0, 1 - t.spent / t.always))} % saved).`),
    h('section', { class: 'panel', 'data-key': 'charts', 'aria-labelledby': 'charts-title' },
      h('h2', { id: 'charts-title' }, 'Last hour', h('span', { class: 'num' }, t.since > t.from ? `watched since ${clock(t.since)}` : '')),
      chart(w, 'Requests', 'a second', perSecond(t.rate), perSecond(t.cold), 'cold starts'),
      chart(w, 'Time to the first byte', 's', first)),
    h('section', { class: 'panel', 'data-key': 'strips', 'aria-labelledby': 'strips-title' },
      h('h2', { id: 'strips-title' }, 'Hosts'),
      h('p', { class: 'legend' }, ['ready', 'waking', 'draining', 'asleep', 'lost'].map((k) => h('span', {}, h('span', { class: `swatch ${k}` }), k)), [['load', 'load'], ['evict', 'eviction or unload'], ['failed', 'failed load']].map(([k, words]) => h('span', {}, h('span', { class: `swatch ${k}` }), words))),
      t.hosts.length ? t.hosts.map((x) => strip(w, x)) : h('p', { class: 'muted' }, 'No host has been seen yet.')),
    month(t.month),
    recent(t),
  ];
}
