// The engines' logs as they are written.
import { h, byId } from './dom.js';
import { call, refusal, session } from './live.js';

const most = 2000; // lines that are kept

const log = { lines: [], text: '', pause: false, ctl: null, says: '' };

/** Begins to follow; the view calls it when it is opened, stopLogs when it is left. */
export async function startLogs() {
  if (log.ctl || !session.logs) return;
  const ctl = new AbortController();
  log.ctl = ctl;
  log.lines = [];
  log.says = 'following the engines';
  try {
    const resp = await call('GET', '/logs/stream', undefined, ctl.signal);
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
    out.textContent = lines.join('\n');
    if (atEnd) out.scrollTop = out.scrollHeight;
    byId('log-count').textContent = `${lines.length} of ${log.lines.length} lines, ${log.says}`;
  });
}

/** Builds the view once. */
export function logsView() {
  if (!session.logs) {
    return [h('h1', {}, 'Logs'), h('div', { class: 'empty' },
      h('p', {}, session.keyed ? 'Engines\' logs need a key that may manage.' : 'Engines\' logs need the key of this machine, in the file admin-key of the gateway\'s state folder.'),
      h('button', { type: 'button', class: 'primary', 'data-do': 'login' }, 'Enter key'))];
  }
  const filter = h('input', { id: 'log-filter', type: 'search', placeholder: 'Filter: model or text', autocomplete: 'off' });
  filter.value = log.text;
  filter.addEventListener('input', () => { log.text = filter.value; draw(); });
  const pause = h('button', { type: 'button', class: 'small', 'aria-pressed': 'false' }, 'Pause');
  pause.addEventListener('click', () => {
    log.pause = !log.pause;
    pause.setAttribute('aria-pressed', String(log.pause));
    draw();
  });
  draw();
  return [h('h1', {}, 'Logs'), h('div', { class: 'row' }, h('label', { class: 'unseen', for: 'log-filter' }, 'Filter the log'), filter, pause, h('span', { id: 'log-count', class: 'muted' }, '')),
    h('pre', { id: 'log-lines', class: 'log', tabindex: '0', role: 'log', 'aria-label': 'Engine output', 'aria-live': 'off' })];
}
