// The logs of the gateway, the runners and the engines as they are written.
import { h, byId } from './dom.js';
import { call, refusal, session, world } from './live.js';

const most = 2000; // lines that are kept

const log = { lines: [], source: '', text: '', pause: false, ctl: null, says: '' };

/** Begins to follow; the view calls it when it is opened, stopLogs when it is left. */
export async function startLogs() {
  if (log.ctl || !session.logs) return;
  const ctl = new AbortController();
  log.ctl = ctl;
  log.lines = [];
  log.says = 'following';
  try {
    const resp = await call('GET', log.source ? `/logs/stream?source=${encodeURIComponent(log.source)}` : '/logs/stream', undefined, ctl.signal);
    if (!resp.ok) throw new Error(await refusal(resp));
    const reader = resp.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ''; ;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split('\n');
      rest = lines.pop().slice(-10000);
      log.lines.push(...lines);
      if (log.lines.length > most) log.lines.splice(0, log.lines.length - most);
      draw();
    }
    log.says = 'the stream has ended';
  } catch (err) {
    if (!ctl.signal.aborted) log.says = err.message;
  }
  if (log.ctl === ctl) log.ctl = null;
  draw();
}

export function stopLogs() {
  log.ctl?.abort();
  log.ctl = null;
}

/** The logs that there are now: the gateway's, each awake runner's, each loaded engine's. */
function sources() {
  const hosts = world.pool?.hosts.filter((x) => x.state === 'ready' || x.state === 'draining') ?? [];
  const engines = hosts.flatMap((x) => x.types.flatMap((t) => t.models.filter((m) => m.state === 'loaded' && !m.retired).map((m) => `${m.id} on ${x.name}`)));
  return ['gateway', ...hosts.map((x) => `runner ${x.name}`), ...engines];
}

/** Fills the list of logs anew if others are there now. One that is followed stays in it. */
export function logSources() {
  const list = byId('log-source');
  if (!list) return;
  const names = sources();
  if (log.source && !names.includes(log.source)) names.push(log.source);
  if (list.dataset.has === JSON.stringify(names)) return;
  list.dataset.has = JSON.stringify(names);
  list.replaceChildren(h('option', { value: '' }, 'All logs'), ...names.map((n) => h('option', { value: n }, n)));
  list.value = log.source;
}

const grave = /^\[[^\]]*\] (?:.* )?level=(WARN|ERROR) /;

/** Text, with the lines that warn or tell of errors in elements of their own. */
function runs(lines) {
  const out = [];
  let plain = [];
  for (const line of lines) {
    const level = grave.exec(line)?.[1];
    if (!level) {
      plain.push(line);
      continue;
    }
    if (plain.length) out.push(`${plain.join('\n')}\n`);
    plain = [];
    out.push(h('span', { class: level === 'ERROR' ? 'error' : 'warning' }, line), '\n');
  }
  return plain.length ? [...out, plain.join('\n')] : out;
}

let due = 0;

function draw() {
  if (due) return;
  due = requestAnimationFrame(() => {
    due = 0;
    const out = byId('log-lines');
    if (!out || log.pause) return;
    const want = log.text.toLowerCase();
    const lines = log.lines.filter((l) => l.toLowerCase().includes(want));
    const atEnd = out.scrollTop + out.clientHeight >= out.scrollHeight - 30;
    out.replaceChildren(...runs(lines));
    if (atEnd) out.scrollTop = out.scrollHeight;
    byId('log-count').textContent = `${lines.length} of ${log.lines.length} lines, ${log.says}`;
  });
}

/** Builds the view once. */
export function logsView() {
  if (!session.logs) {
    return [h('h1', {}, 'Logs'), h('div', { class: 'empty' },
      h('p', {}, session.keyed ? 'Logs need a key that may manage all models.' : 'Logs need the key of this machine, in the file admin-key of the gateway\'s state folder.'),
      h('button', { type: 'button', class: 'primary', 'data-do': 'login' }, 'Enter key'))];
  }
  const source = h('select', { id: 'log-source' });
  source.addEventListener('change', () => {
    log.source = source.value;
    stopLogs();
    startLogs();
  });
  const filter = h('input', { id: 'log-filter', type: 'search', placeholder: 'Lines with …', autocomplete: 'off' });
  filter.value = log.text;
  filter.addEventListener('input', () => { log.text = filter.value; draw(); });
  const pause = h('button', { type: 'button', class: 'small', 'aria-pressed': 'false' }, 'Pause');
  pause.addEventListener('click', () => {
    log.pause = !log.pause;
    pause.setAttribute('aria-pressed', String(log.pause));
    draw();
  });
  draw();
  return [h('h1', {}, 'Logs'), h('div', { class: 'row' }, h('label', { class: 'unseen', for: 'log-source' }, 'Log'), source, h('label', { class: 'unseen', for: 'log-filter' }, 'Only lines with this text'), filter, pause, h('span', { id: 'log-count', class: 'muted' }, '')),
    h('pre', { id: 'log-lines', class: 'log', tabindex: '0', role: 'log', 'aria-label': 'Log lines', 'aria-live': 'off' })];
}
