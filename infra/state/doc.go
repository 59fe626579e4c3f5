// Package state is the pool's shared state in Redis: hosts, models, tickets, LRU order, NPU holders, the catalog and
// the counters. Every change is one Lua script (folder lua, one file per operation, each with its contract at the top),
// so a decision is either committed completely or refused. This package makes no decisions itself.
//
// Keys. `{pool}` is a hash tag, so that one pool lives in one slot of a Redis Cluster. All values but responses are
// plain hashes, sorted sets, sets, lists and strings, which redis-cli alone can explain. TTLs only remove leftovers and
// carry no meaning.
//
//	key                        Redis type  written by                         TTL    holds
//	rv:{pool}:format           string      register, catalog_put              -      number of the state's format: programs of another
//	                                                                                 format are refused
//	rv:{pool}:epoch            string      register, slot_claim, catalog_put  -      set once, to the time in microseconds;
//	                                                                                 missing after data loss
//	rv:{pool}:rev              string      every script that changes a        -      revision: rises with every change,
//	                                       decision's input                          never behind the clock in microseconds
//	rv:{pool}:revs             hash        the same                           -      rev of the last change that decisions depend
//	                                                                                 on: where a model is or will be (m:<m>), or
//	                                                                                 the pool (pool); a host's is in its record.
//	                                                                                 Plans based on older ones are refused as stale
//	rv:{pool}:token            string      acquire, renew, claim, register,   -      last fencing token, never behind
//	                                       sleep_commit, repair, wake,               the clock in microseconds
//	                                       slot_claim
//	rv:{pool}:hosts            set         register, catalog_put, acquire,    -      host names
//	                                       renew, claim, repair, forget,
//	                                       slot_claim
//	rv:{pool}:host:<h>         hash        register, beat, host_state,        -      state, devices, addr, generation,
//	                                       begin, finish (loading); acquire,         seen_ms, active_ms, boot, loading, rev;
//	                                       renew, claim and wake (state of a         waking_ms, failed_ms, error: its wake;
//	                                       host that sleeps or is lost); sleep,      lost_ms: when missing beats were
//	                                       repair, forget: see Verbs                 noticed; orphan_ms: when its machine was
//	                                                                                 seen to run without a runner; sleep_token,
//	                                                                                 stop_ms, left_ms: its sleep and the stop of
//	                                                                                 its machine;
//	                                                                                 memory_budget, memory_total, gpu_api,
//	                                                                                 found, options; need:<m>: package placement;
//	                                                                                 boot_state, boot_error, boot_ms: its boot;
//	                                                                                 machine, claimed_ms: who has this slot of a
//	                                                                                 group, and since when;
//	                                                                                 off_ms: when a sleep found its machine off;
//	                                                                                 packet_ms: when this wake sent a magic packet
//	                                                                                 after that; proven: the host registered then
//	rv:{pool}:models:<h>       set         the host's runner, forget_host     -      models with a record on the host
//	rv:{pool}:copies:<m>       set         acquire, the host's runner,        -      hosts with a record of the model or a
//	                                       whatever ends tickets                     ticket for it
//	rv:{pool}:model:<h>:<m>    hash        the host's runner                  -      state, type, recipe, device,
//	                                                                                 cards, backend_url, pid, in_flight, needed_ms …;
//	                                                                                 for <m>~<pid>, an old copy that only
//	                                                                                 finishes its requests: retired, its model
//	rv:{pool}:lru:<h>:<type>   sorted set  the host's runner: beat, and       -      model by last use in ms: the only record of use
//	                                       with each record                          times, and the order of victims
//	rv:{pool}:npu:<h>          string      begin, model_put, model_drop,      -      lock of the NPU: the models that have it; begin is
//	                                       finish, register, forget_host             refused while others have all seats
//	rv:{pool}:queue:<h>        list        acquire, begin, register, whatever -      tickets not begun, in order
//	                                       ends tickets, forget_host
//	rv:{pool}:begun:<h>        set         begin, register, whatever ends     -      tickets begun and not ended: one load
//	                                       tickets, forget_host                      (field loading), any unloads
//	rv:{pool}:ticket:<id>      hash        acquire, renew, begin, finish,     60 s   one load or unload, kept a minute
//	                                       leave, pulled                      after  after its end
//	rv:{pool}:waiters:<id>     sorted set  acquire, renew, leave              60 s   gateway by end of its lease in ms
//	                                                                          after
//	rv:{pool}:wanted           hash        acquire, and whatever ends tickets -      model → its shared load ticket
//	rv:{pool}:wake:<h>         hash        acquire, renew, claim, wake,       1 h    power lease: owner, token, exp_ms
//	                                       sleep_*, register, repair, forget
//	rv:{pool}:group:<g>        hash        group_lease                        1 h    lease of a group's size: owner, exp_ms
//	rv:{pool}:op:<id>          string      acquire, usage                     60 s   completed operation: its ticket
//	rv:{pool}:catalog          hash        catalog_put                        -      version, json, mac
//	rv:{pool}:settings:<name>  hash        Settings                           -      saved options, pins, aliases, run-time models,
//	                                                                                 when conversations were forgotten
//	rv:{pool}:response:<t>:<id> string     PutResponse                        given  stored response of tenant <t>, encrypted
//	rv:{pool}:responses:<t>    sorted set  response_put                       given  "id bytes" of these, by end in ms
//	rv:{pool}:quota:<key>      hash        usage                              10 y   spent: tokens of an API key's budget
//	rv:{pool}:gateways         sorted set  usage                              10 s   gateways that share limits, by last word in ms
//	rv:{pool}:day:<n>          hash        hours, usage, register, wake,      63 d   counters of the day of UTC that is n days after
//	                                       repair                                    1970-01-01, "host:awake_ms:<h>" …: see Day
//	rv:{pool}:counted_ms       string      hours                              -      until when sweeps have counted hosts
//	rv:{pool}:conv:<m>         hash        PutConversations                   24 h   host → JSON of what it has saved of
//	                                                                                 the model's conversations
//	rv:{pool}:convs            sorted set  conv_put                           24 h   these models, by end in ms
//	rv:{pool}:stats            hash        usage, finish, model_drop          -      counters of the pool
//	rv:{pool}:events           channel     every change                       -      JSON events for the mirrors of gateways;
//	                                                                                 the last one of a change carries its host
//	rv:{pool}:events:host:<h>  channel     changes of a host                  -      the same for the host's runner
//	rv:{pool}:events:pool      channel     other changes                      -      the same for all runners
//
// Groups. A machine of a group claims one of the group's hosts (slot_claim), registers with its id, and loses the slot
// when it is turned off (sleep_end) or a driver finds that it is gone (slot_release).
//
// Verbs. The scripts sleep_* commit a host's sleep (sleep_token), have its runner confirm it, and begin, hold and end
// the stop of its machine (stop_ms). The outcome leave ends a stop whose driver accepted while the machine is not known
// to be off (left_ms): its runner may not register for two more minutes, and the next sweep continues it. repair writes
// state that no other process can write: a host is lost (lost), did not start when woken (stranded), was lost for
// longer than a wake takes (unseen), or is asleep while its machine runs (orphan, noted first in orphan_ms); after the
// last three, a sleep_token has its machine turned off. forget removes every key of a host that the catalog does not
// name. The function forget_host runs in host_state, sleep_confirm, repair and forget, and when a lost host is woken.
//
// Time is Redis' own (TIME inside the scripts). Leases are fields compared with it. A runner's writes carry its
// generation and are refused (ErrFenced) once another runner has registered the host.
//
// Redis is trusted as far as its password, ACL and TLS reach: whoever can write to it can change the pool's settings.
// Only the catalog carries an HMAC under the runner secret, because its hosts have commands that turn them on and off:
// no command line comes from Redis. Stored responses are encrypted. See infra/adr/0015-redis-is-trusted.md.
//
// If Redis is unreachable, calls end within Options.Timeout with ErrUnavailable, and a breaker refuses calls
// immediately until it returns. If Redis is emptied, the next beat returns unknown to runners, and they register with
// everything they hold.
package state
