// The page: views by the address's fragment, the key, actions.
import { h, byId, show, toast } from './dom.js';
import { ask, session, status, readSession, readBatches, login, logout, onChange, again, world } from './live.js';
import { poolView, changes, filter } from './pool.js';
import { timelineView } from './timeline.js';
import { playView, playModels } from './play.js';
import { logsView, logSources, startLogs, stopLogs } from './logs.js';

const main = byId('main');
const views = { pool: 'Pool', timeline: 'Timeline', playground: 'Playground', logs: 'Logs' };
let view = '';
let known = ''; // what the session last allowed

const wanted = () => location.hash.slice(1) in views ? location.hash.slice(1) : 'pool';

/** Redraws what changes by itself. Playground and logs are built once: people type in them. */
function draw() {
  if (view === 'pool') show(main, ...poolView());
  if (view === 'timeline') show(main, ...timelineView());
}

function open(name) {
  if (view === 'logs') stopLogs();
  view = name;
  document.title = `${views[name]} – Reveille`;
  for (const a of document.querySelectorAll('nav a')) {
    if (a.hash === `#${name}`) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
  main.dataset.view = name;
  if (name === 'playground') {
    main.replaceChildren(...playView());
    playModels();
  } else if (name === 'logs') {
    main.replaceChildren(...logsView());
    logSources();
    startLogs();
  } else {
    main.replaceChildren();
    draw();
  }
}

window.addEventListener('hashchange', () => {
  if (location.hash === '#main') return;
  open(wanted());
  main.focus({ preventScroll: true });
});

const paths = {
  load: (b) => ['POST', '/v1/load', { model_name: b.dataset.model }, `Loading ${b.dataset.model}`],
  unload: (b) => ['POST', '/v1/unload', { model_name: b.dataset.model }, `Unloading ${b.dataset.model}`],
  pin: (b) => ['POST', '/internal/pin', { model_name: b.dataset.model, pinned: true }, `Pinning ${b.dataset.model}`],
  unpin: (b) => ['POST', '/internal/pin', { model_name: b.dataset.model, pinned: false }, `Unpinning ${b.dataset.model}`],
  wake: (b) => ['POST', `/internal/hosts/${encodeURIComponent(b.dataset.host)}/wake`, {}, `Waking ${b.dataset.host}`],
  sleep: (b) => ['POST', `/internal/hosts/${encodeURIComponent(b.dataset.host)}/sleep`, {}, `Putting ${b.dataset.host} to sleep`],
};

document.addEventListener('click', async (e) => {
  const button = e.target.closest('button[data-do]');
  if (!button) return;
  if (button.dataset.do === 'login') return openLogin();
  const [method, path, body, words] = paths[button.dataset.do](button);
  const begun = toast(`${words} …`, false, null, false);
  try {
    const done = await ask(method, path, body);
    toast(done.message ?? 'Done', false, begun);
  } catch (err) {
    toast(err.message, true, begun);
    if (err.status === 401) openLogin(err.message);
  }
});

main.addEventListener('input', (e) => {
  if (e.target.id === 'model-filter') filter.text = e.target.value;
  else if (e.target.id === 'model-loaded') filter.loaded = e.target.checked;
  else return;
  draw();
});

const dialog = byId('login');

function openLogin(why) {
  byId('login-why').textContent = typeof why === 'string' ? why
    : session.keyed ? 'This browser stays signed in for twelve hours, by a cookie that does not hold the key.' : 'The key of this machine is in the file admin-key of the gateway\'s state folder.';
  byId('login-error').textContent = '';
  byId('login-key').value = '';
  if (!dialog.open) dialog.showModal();
}

byId('key').addEventListener('click', async () => {
  if (session.key) await logout().catch((err) => toast(err.message, true));
  else openLogin();
});
byId('login-cancel').addEventListener('click', () => dialog.close());
byId('login-form').addEventListener('submit', async (e) => {
  e.preventDefault();
  try {
    await login(byId('login-key').value);
    dialog.close();
  } catch (err) {
    byId('login-error').textContent = err.message;
  }
});

onChange((what) => {
  if (what === 'status') {
    byId('live').dataset.state = status.state;
    byId('live-text').textContent = status.text;
  } else if (what === 'session') {
    byId('key').textContent = session.key ? 'Forget key' : 'Enter key';
    byId('key').hidden = !session.keyed && !session.admin && !session.key;
    const may = JSON.stringify([session.keyed, session.key, session.infer, session.manage, session.logs]);
    if (may !== known) { // else what people have typed stays
      known = may;
      open(wanted());
    }
  } else if (what === 'denied') {
    openLogin();
    draw();
  } else if (what === 'pool' && view === 'logs') {
    logSources();
  } else if (what === 'models' && view === 'playground') {
    playModels();
  } else {
    draw();
  }
  if (what === 'pool') {
    const text = changes();
    if (text) byId('announce').textContent = text;
  }
});

setInterval(() => { if (document.visibilityState === 'visible' && view === 'pool') readBatches().catch(() => {}); }, 3000);

setInterval(() => { if (document.visibilityState === 'visible' && world.pool) draw(); }, 1000);

byId('code-close').addEventListener('click', () => byId('code').close());
byId('code-copy').addEventListener('click', async () => {
  try {
    await navigator.clipboard.writeText(byId('code-text').textContent);
    toast('Copied');
  } catch {
    getSelection().selectAllChildren(byId('code-text'));
    toast('Selected: copy it with the keyboard');
  }
});

open(wanted());
readSession().then(again, (err) => {
  main.replaceChildren(h('p', { class: 'empty' }, err.message));
  again();
});
