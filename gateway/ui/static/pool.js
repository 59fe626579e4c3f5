// Hosts, the queue, the catalog.
import { h, s, bytes, lasting, clock, plural } from './dom.js';
import { world, session, status, now } from './live.js';

const typeNames = { llm: 'Language', embedding: 'Embedding', reranking: 'Reranking', audio: 'Audio', image: 'Image', tts: 'Speech' };
const stages = { queued: 'queued', waking: 'host wakes', pulling: 'fetching', loading: 'loading', asleep: 'asleep', draining: 'draining' };

export const filter = { text: '', loaded: false };

const action = (what, label, attrs, off) =>
  h('button', { type: 'button', class: 'small', 'data-do': what, disabled: off || !session.manage, title: session.manage ? null : 'This needs a key that may manage', ...attrs }, label);

function bar(device) {
  const share = device.budget > 0 ? Math.min(100, 100 * device.used / device.budget) : 0;
  const words = device.budget > 0 ? `${bytes(device.used)} of ${bytes(device.budget)}` : `${bytes(device.used)} used`;
  return h('div', { class: 'device', 'data-key': `d-${device.name}` },
    h('span', { class: 'label' }, device.name.toUpperCase()),
    s('svg', { class: 'bar', role: 'img', 'aria-label': `${device.name} memory: ${words}`, width: '100%', height: '6' },
      s('rect', { class: 'track', width: '100%', height: '6', rx: '3' }),
      share > 0 && s('rect', { class: share > 90 ? 'fill high' : 'fill', width: `${share.toFixed(1)}%`, height: '6', rx: '3' })),
    h('span', { class: 'num' }, words));
}

function seat(x) {
  const room = x.of === 1 ? 'NPU seat' : `${x.of} NPU seats`;
  return h('p', { class: 'seat', 'data-key': `s-${x.type ?? ''}` },
    h('span', { class: 'label' }, x.type ? `${room} (${x.type})` : room), ' ', x.by.length ? `held by ${x.by.join(', ')}` : 'free');
}

function doing(m) {
  if (m.retired) return 'finishes its requests, then goes';
  if (m.state === 'loading') return 'loading';
  if (m.state === 'draining') return 'stopping';
  if (m.busy) {
    const turns = m.queued > 0 ? `, ${m.queued} of them wait for the engine` : '';
    return m.requests > 0 ? `busy, ${plural(m.requests, 'request')}${turns}` : 'busy';
  }
  let text = m.used ? `idle ${lasting(now() - m.used)}` : 'idle';
  if (m.until) text += m.until > now() ? `, until ${clock(m.until - world.skew)}` : ', to be unloaded';
  return text;
}

function slot(m, host, victim) {
  const lost = host.state === 'lost'; // what it held is not known to be there
  const kind = lost ? 'lost' : m.state === 'loaded' ? (m.busy ? 'busy' : 'idle') : m.state;
  return h('li', { class: `slot ${kind}`, 'data-key': `m-${m.id}-${m.retired ? 'r' : ''}` },
    h('span', { class: 'mark', 'aria-hidden': 'true' }),
    h('div', { class: 'who' },
      h('span', { class: 'model' }, m.id),
      m.pinned && h('span', { class: 'tag' }, 'pinned'),
      !lost && m.state === 'loaded' && m.id === victim && h('span', { class: 'tag out', title: 'The next load of this type stops it' }, m.busy ? 'next out, once idle' : 'next out'),
      h('span', { class: 'muted' }, lost ? 'was loaded' : doing(m), m.memory ? `, ${bytes(m.memory)}` : '')),
    !lost && !m.retired && m.state === 'loaded' && h('div', { class: 'acts' },
      action(m.pinned ? 'unpin' : 'pin', m.pinned ? 'Unpin' : 'Pin', { 'data-model': m.id, 'aria-label': `${m.pinned ? 'Unpin' : 'Pin'} ${m.id}` }),
      action('unload', 'Unload', { 'data-model': m.id, 'aria-label': `Unload ${m.id}` })));
}

function type(t, host) {
  const room = t.limit < 0 ? 'no limit' : `${t.models.filter((m) => !m.retired).length} of ${t.limit}`;
  return h('section', { class: 'type', 'data-key': `t-${t.type}` },
    h('h4', {}, typeNames[t.type] ?? t.type, h('span', { class: 'num' }, room), t.pinned && h('span', { class: 'tag' }, 'all pinned')),
    h('ol', {}, t.models.map((m) => slot(m, host, t.victim))));
}

function stateWords(host) {
  if (host.boot === 'failed') return 'start failed';
  if (host.boot) return host.since ? `booting, ${lasting(now() - host.since)}` : 'booting';
  if (host.state === 'waking' && host.since) return `waking, ${lasting(now() - host.since)}`;
  if (host.state === 'lost' && host.since) return `lost for ${lasting(now() - host.since)}`;
  if (host.pending) return 'asleep, not known to be off';
  if (host.unproven) return `${host.state}, sleep is not proven`;
  return host.state;
}

function card(host) {
  const up = host.state === 'ready' || host.state === 'draining';
  const note = world.notes[host.name];
  return h('article', { class: `card ${host.boot === 'failed' ? 'failed' : host.state}`, 'data-key': `h-${host.name}`, 'aria-label': `Host ${host.name}` },
    h('header', {},
      h('h3', {}, host.name),
      h('span', { class: 'state' }, h('span', { class: 'dot' }), stateWords(host)),
      h('span', { class: 'grow' }),
      up ? action('sleep', 'Sleep', { 'data-host': host.name, 'aria-label': `Put ${host.name} to sleep` })
        : action('wake', 'Wake', { 'data-host': host.name, 'aria-label': `Wake ${host.name}` }, host.state === 'waking')),
    note && h('p', { class: 'note', 'data-key': 'note' }, note),
    (host.devices.some((d) => d.budget || d.used) || host.seats) && h('div', { class: 'devices', 'data-key': 'devices' }, host.devices.filter((d) => d.budget || d.used).map(bar), (host.seats ?? []).map(seat)),
    host.types.map((t) => type(t, host)),
    !host.types.length && up && h('p', { class: 'muted', 'data-key': 'none' }, 'Nothing is loaded.'));
}

function ticket(t, i) {
  const state = t.kind === 'load' ? stages[t.state] ?? t.state : t.kind;
  const progress = t.total > 0 ? ` ${bytes(t.done)} of ${bytes(t.total)}` : '';
  return h('tr', { class: t.head ? 'head' : null, 'data-key': `q-${t.host ?? ''}-${t.model}-${t.kind}-${i}` },
    h('td', { class: 'num', 'data-label': 'place' }, t.place || '–'),
    h('td', {}, h('span', { class: 'model' }, t.model), t.host && h('span', { class: 'muted' }, ` on ${t.host}`)),
    h('td', {}, h('span', { class: `stage ${t.state}` }, state), progress),
    h('td', { class: 'num', 'data-label': 'waiting' }, t.waiting),
    h('td', { class: 'num', 'data-label': 'since' }, t.since ? lasting(now() - t.since) : '–'),
    h('td', { class: 'num', 'data-label': 'estimate' }, t.eta ? `about ${lasting(t.eta * 1000)}` : '–'),
    h('td', { class: 'why' }, t.head ? h('strong', {}, t.why) : t.why));
}

function queue(pool) {
  return h('section', { class: 'panel', 'data-key': 'queue', 'aria-labelledby': 'queue-title' },
    h('h2', { id: 'queue-title' }, 'Queue', h('span', { class: 'num' }, pool.queue.length || '')),
    pool.queue.length
      ? h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-labelledby': 'queue-title' }, h('table', { class: 'queue' },
        h('thead', {}, h('tr', {}, ['Place', 'Model', 'Stage', 'Waiting', 'Since', 'Estimate', 'Why it waits'].map((x) => h('th', { scope: 'col' }, x)))),
        h('tbody', {}, pool.queue.map(ticket))))
      : h('p', { class: 'muted' }, 'Nothing waits.'));
}

function batch(b) {
  const { completed, failed, total } = b.request_counts;
  const open = b.status === 'in_progress' || b.status === 'validating';
  const why = b.wait_reason ?? world.pool?.queue.find((t) => t.model === b.model)?.why;
  return h('tr', { 'data-key': `b-${b.id}` },
    h('td', {}, h('span', { class: 'model' }, b.id)),
    h('td', {}, b.model ?? '–'),
    h('td', {}, h('span', { class: `stage ${b.status}` }, b.status.replace('_', ' '))),
    h('td', { class: 'num', 'data-label': 'completed' }, `${completed} of ${total}`),
    h('td', { class: 'num', 'data-label': 'failed' }, failed),
    h('td', { class: 'why' }, open && why));
}

function batches() {
  return world.batches.length > 0 && h('section', { class: 'panel', 'data-key': 'batches', 'aria-labelledby': 'batches-title' },
    h('h2', { id: 'batches-title' }, 'Batches of this key'),
    h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-labelledby': 'batches-title' }, h('table', { class: 'queue' },
      h('thead', {}, h('tr', {}, ['Batch', 'Model', 'Status', 'Completed', 'Failed', 'Why it waits'].map((x) => h('th', { scope: 'col' }, x)))),
      h('tbody', {}, world.batches.map(batch)))));
}

function models() {
  const match = world.models.filter((m) => m.id.toLowerCase().includes(filter.text.toLowerCase()) && (!filter.loaded || m.state !== 'unloaded'));
  return h('section', { class: 'panel', 'data-key': 'models', 'aria-labelledby': 'models-title' },
    h('h2', { id: 'models-title' }, 'Models', h('span', { class: 'num' }, `${match.length} of ${world.models.length}`)),
    h('div', { class: 'row' },
      h('label', { class: 'unseen', for: 'model-filter' }, 'Find a model'),
      h('input', { id: 'model-filter', type: 'search', placeholder: 'Find a model', autocomplete: 'off' }),
      h('label', { class: 'check' }, h('input', { id: 'model-loaded', type: 'checkbox' }), ' loaded only')),
    h('div', { class: 'scroll tall', tabindex: '0', role: 'region', 'aria-labelledby': 'models-title' }, h('table', {},
      h('thead', {}, h('tr', {}, ['Model', 'Type', 'State', ''].map((x) => x ? h('th', { scope: 'col' }, x) : h('td', {})))),
      h('tbody', {}, match.map((m) => h('tr', { 'data-key': `c-${m.id}` },
        h('td', {}, h('span', { class: 'model' }, m.id), m.note && h('span', { class: 'muted' }, ` ${m.note}`)),
        h('td', {}, typeNames[m.type] ?? m.type),
        h('td', {}, h('span', { class: `stage ${m.state}` }, m.state)),
        h('td', { class: 'end' }, m.state === 'unloaded' && action('load', 'Load', { 'data-model': m.id, 'aria-label': `Load ${m.id}` }))))))));
}

/** What is said in place of a view of the pool. */
export const nothing = () => session.keyed && !session.key ? 'This gateway needs an API key.'
  : status.text === 'not for this key' ? 'This view shows all models, and this key is limited to some of them. It may use the playground.' : 'Waiting for the pool …';

/** The view's elements. */
export function poolView() {
  const pool = world.pool;
  if (!pool) return [h('h1', { class: 'unseen' }, 'Pool'), h('p', { class: 'empty' }, nothing()), batches()];
  const awake = pool.hosts.filter((x) => x.state === 'ready' || x.state === 'draining').length;
  const loaded = pool.hosts.filter((x) => x.state !== 'lost').flatMap((x) => x.types).flatMap((t) => t.models).filter((m) => m.state === 'loaded');
  const facts = [
    [`${awake} of ${pool.hosts.length}`, 'hosts awake'],
    [loaded.length, loaded.length === 1 ? 'model loaded' : 'models loaded'],
    [loaded.filter((m) => m.busy).length, 'busy'],
    [pool.waiting, pool.waiting === 1 ? 'request waits' : 'requests wait'],
  ];
  return [
    h('h1', { class: 'unseen' }, 'Pool'),
    pool.stale && h('p', { class: 'banner', 'data-key': 'stale' }, 'Redis unavailable: this is the last known state. Loaded models keep serving.'),
    h('dl', { class: 'facts', 'data-key': 'facts' }, facts.map(([n, what]) => h('div', {}, h('dt', {}, what), h('dd', {}, n)))),
    queue(pool),
    batches(),
    h('section', { 'data-key': 'hosts', 'aria-labelledby': 'hosts-title' },
      h('h2', { id: 'hosts-title' }, 'Hosts'),
      pool.hosts.length ? h('div', { class: 'cards' }, pool.hosts.map(card)) : h('p', { class: 'muted' }, 'No host is known yet.')),
    models(),
    pool.more > 0 && h('p', { class: 'muted', 'data-key': 'more' }, `${pool.more} more are not shown.`),
  ];
}

let before = new Map();

/** Says in words what has changed since the last call: stages of loads and states of hosts. */
export function changes() {
  const after = new Map();
  for (const host of world.pool?.hosts ?? []) {
    after.set(`h ${host.name}`, `${host.name} is ${host.boot === 'failed' ? 'not able to start' : host.state}`);
    for (const m of host.types.flatMap((t) => t.models)) after.set(`m ${m.id} ${host.name}`, `${m.id} is ${m.state} on ${host.name}`);
  }
  for (const t of world.pool?.queue ?? []) if (t.kind === 'load') after.set(`q ${t.model}`, `${t.model}: ${stages[t.state] ?? t.state}`);
  const out = before.size ? [...after].filter(([k, v]) => before.get(k) !== v).map(([, v]) => v) : [];
  before = after;
  return out.slice(0, 3).join('. ');
}
