// Package batch queues all embedding requests of a loaded model. It packs waiting requests into engine calls by tokens,
// and gives every request its own answer: in order, each sequence exactly once, through splits, retries and departures.
//
// # Sizes
//
// All sizes are in tokens as the model sees them, including its special ones.
//
//   - n_batch bounds what is packed into one engine call. A larger one means fewer but longer calls.
//   - n_ubatch bounds a single sequence. It is at most n_batch; the model's own positions are another bound.
//   - context bounds the total in flight. Twice n_batch lets a full batch be sent while another is computed.
//
// Choose n_batch by how long a call may take, since a single text that arrives while a call is in flight waits for its
// end. On a processor 512 to 2048 is enough, since a call costs little there. On a GPU use what its memory allows,
// since each call has a cost of its own.
//
// # When a call is made
//
// See [packer]. In short: an idle engine is used at once, and batches grow only by queueing. A request that has the
// engine to itself is passed on and answered byte for byte. A shared call asks for base64, which takes a quarter of the
// bytes and almost no work in the engine. Clients that want numbers get the shortest ones that read back as the same
// float32.
//
// # Token counts
//
// Token counts decide what fits and give each request's usage. With BERT vocabularies, plain ASCII text is counted in
// process ([WordPiece]), which [New] checks against the engine. The engine's /tokenize counts other text, and the
// counts are cached. Requests that cannot be joined, because of their form or a member other than model, input,
// encoding_format, dimensions and user, and requests for engines that cannot count, are left to the caller
// (ErrNotBatched).
//
// # Errors
//
//   - 400 context_length_exceeded: an input is longer than the longest sequence. The message gives its index and both
//     numbers; nothing of the request was sent. Shorten the input, or raise n_ubatch if the model has the positions.
//   - 503 engine_out_of_memory: the engine had no memory for a call, nor for smaller ones down to 64 tokens in at most
//     6 tries. Lower n_batch. The engine stays in use, and later batches start at the size that worked, see ceiling.
//   - 502 bad_engine_reply: the engine's answer lacks an embedding or contains a value that is not finite.
//   - If an engine refuses a call of several requests with 4xx or 500, each half of them is sent again, and so on, so
//     that only the request at fault is refused, with the engine's own answer. That takes about 2·log2(n) calls for one
//     of n. 401, 403, 408, 429 and statuses that describe the engine, such as 503, are the answer to all of them.
//   - When the engine ends, requests that were not sent at all fail with ErrUnsent and can be made elsewhere. Others
//     fail with ErrCut or the error of their call.
//
// # Measured
//
// MiniLM on llama-server, on two cores shared with the clients and partly with other work, and closed-loop clients with
// one text a request (bench.svg). "arrays" is one client that sends as many texts a request as there are clients
// elsewhere, which is the most that batching can achieve. The columns are medians of texts a second, p99 in ms over all
// requests that were open in a window, and model evaluations per thousand texts:
//
//	texts  clients n_batch | plain flags queue arrays |  plain  flags  queue | plain flags queue | queue of plain
//	short        1     256 |    96    83    99     90 |     25     34     24 |  1000  1000  1000 |     1.06
//	short        8     256 |   115   112   114    120 |     95    153    158 |   254   209   166 |     0.95
//	short       64     256 |   118   131   148    121 |  19435   2908    687 |   278    42    44 |     1.27
//	short        1    2048 |    72    83    88     52 |     67     31     24 |  1000  1000  1000 |     1.04
//	short        8    2048 |   129   126   120    125 |     77    106     79 |   253   199   161 |     1.03
//	short       64    2048 |   102   101   112     96 |   6626    986    700 |   258    32    50 |     1.12
//	long         1    2048 |     8     6     7      8 |    165    198    187 |  1000  1000  1000 |     0.93
//	long         8    2048 |     8     8     9      7 |   4740   4604   1870 |   380   357   438 |     1.11
//	long        64    2048 |     9    10     9     10 |  38922  46666   9936 |   377   323   331 |     1.02
//	mixed        1    2048 |    11    11    11     11 |    153    157    151 |  1000  1000  1000 |     1.00
//	mixed        8    2048 |    10    11    10     11 |   1926   1923   1147 |   330   308   432 |     1.00
//	mixed       64    2048 |    12    14    15     15 |  33615  28573   6125 |   340   265   280 |     1.18
//	short        1    8192 |    78    46    61     59 |     53     57     46 |  1000  1000  1000 |     0.88
//	short        8    8192 |    90    81    69     95 |    206    249    230 |   254   198   185 |     0.90
//	short       64    8192 |   117   129   133    162 |    660    685    585 |   250    30    45 |     1.14
//	long         1    8192 |     8     8     8      8 |    167    153    154 |  1000  1000  1000 |     1.00
//	long         8    8192 |     8     8     8     10 |   3815   3769   1581 |   366   347   457 |     0.93
//	long        64    8192 |     8     9    10     10 |  44473  48560  11211 |   386   323   333 |     1.18
//	mixed        1    8192 |    10    11    10     10 |    171    162    170 |  1000  1000  1000 |     1.00
//	mixed        8    8192 |    10    10    11     12 |   2836   4042   1443 |   333   316   406 |     1.11
//	mixed       64    8192 |    10    12    10     12 |  23326  37292   9465 |   325   264   281 |     1.08
//
// Rates vary by a tenth and more between windows; where a row's rates are below its neighbours', other work had the
// cores. Here the model's time goes into arithmetic: even arrays gain at most a fifth. What the queue changes is who
// waits. With more clients than llama-server has threads, some get no answer for as long as the others keep asking,
// which shows in its p99 but not in its median. The rows of short texts, except the last, were measured in a separate
// run. In the stand-in's cost model each call has a fixed cost (5 ms, plus 0.1 ms a text, 64 clients). There the queue
// reaches 0.96 of one client with arrays of 64, and 0.855 of what the costs alone would allow.
//
// The queue's own work per text (BenchmarkServe) is 10 allocations and 704 bytes for a lone request, and less than one
// allocation and 145 bytes if 64 share a call. Decoding and encoding with encoding/json (BenchmarkNaive) takes 39 and
// 23 allocations, 1.9 KB and 1.6 KB.
//
// # Concurrency
//
// One mutex guards a queue; it is never held during I/O. Each batch is one goroutine, which works on copies of its
// requests, since a request may end, for example when its client leaves, before the call that carries it.
package batch
