// Package batch is the one queue of a loaded model's embedding requests. It packs what waits into engine calls by tokens,
// and gives every request its own answer: in order, each sequence exactly once, through splits, retries and departures.
//
// # Sizes
//
// All are in tokens as the model sees them, its special ones included.
//
//   - n_batch is how much is packed into one engine call. Larger means fewer calls, and longer ones.
//   - n_ubatch is the largest single sequence. It is no more than n_batch, and the model's own positions bound it too.
//   - context is the sum of what is under way. Twice n_batch lets a full batch be sent while another is computed.
//
// Choose n_batch by how long a call may take: a single text that arrives while one is under way waits for its end. On a
// processor 512 to 2048 is enough, since a call costs little there; on a GPU take what its memory allows, since a call has
// a cost of its own.
//
// # When a call is made
//
// See [Former]. In short: an idle engine is used at once, and batches grow by queueing alone. A request that has the
// engine to itself is passed on and answered byte for byte as it came. A shared call asks for base64, which is a quarter of
// the bytes and next to no work for the engine; who wants numbers gets the shortest that read as the same float32.
//
// # Token counts
//
// They decide what fits, and are each request's usage. For BERT's vocabularies plain ASCII text is counted in process
// ([WordPiece]), which [New] checks against the engine; other text is counted by the engine's /tokenize, and remembered.
// Requests that cannot be joined, for their form or for a member other than model, input, encoding_format, dimensions and
// user, and those for engines that cannot count, are left to the caller (ErrNotBatched).
//
// # Errors
//
//   - 400 context_length_exceeded: an input is longer than the longest sequence. The message has its index and both
//     numbers; nothing of the request was sent. Shorten the input, or raise n_ubatch where the model has the positions.
//   - 503 engine_out_of_memory: the engine had no memory for a call, nor for halves of it down to 64 tokens in at most 4
//     tries. Lower n_batch. The engine stays in use.
//   - 502 bad_engine_reply: the engine's answer lacks an embedding or holds a value that is not finite.
//   - An engine that refuses a call of several requests is asked again for each half of them, and so on, so that only the
//     one at fault is refused, with the engine's own answer: in about 2·log2(n) calls for one of n. That is for 4xx and 500;
//     401, 403, 408, 429 and what else says something of the engine, such as 503, are the answer to all of them.
//   - When the engine ends, requests of which nothing was sent fail with ErrUnsent and can be made elsewhere; others fail
//     with ErrCut, or with what their call failed with.
//
// # Measured
//
// MiniLM on llama-server, two cores shared with the clients and taken by others for a part of the time, closed-loop clients
// with one text a request (bench.svg; "arrays" is one client with as many texts a request as there are clients elsewhere,
// which is the most that batching can bring). Medians of texts a second, p99 in ms, model evaluations for a thousand texts:
//
//	texts  clients n_batch | plain flags queue arrays | plain flags queue | plain flags queue | queue of plain
//	short        1     256 |   101    96   100     99 |    15    16    16 |  1000  1000  1000 |           1.00
//	short        8     256 |   148   138   144    155 |    66    95    67 |   251   216   156 |           0.96
//	short       64     256 |   149   140   140    163 |   481  1010   607 |   277    42    44 |           1.12
//	short        1    2048 |   106   106   106    109 |    13    14    15 |  1000  1000  1000 |           1.01
//	short        8    2048 |   128   129   129    130 |    76   101    75 |   252   195   158 |           1.05
//	short       64    2048 |   131   130   120    120 |    74   794   536 |   285    29    42 |           0.92
//	long         1    2048 |     9     9     9      9 |   134   133   134 |  1000  1000  1000 |           1.00
//	long         8    2048 |     8     9     9      8 |  2166  1494  1506 |   372   361   447 |           1.11
//	mixed        1    2048 |    11    11    11     11 |   135   153   167 |  1000  1000  1000 |           0.90
//	mixed        8    2048 |    10    10    12     12 |  1962  1361   859 |   324   301   410 |           1.15
//	short        1    8192 |    98   104   101    101 |    15    14    16 |  1000  1000  1000 |           1.03
//	short        8    8192 |   125   128   129    125 |    77   114    72 |   252   201   159 |           0.99
//	short       64    8192 |   149   169   172    172 |   154   529   444 |   267    29    41 |           1.03
//	long         1    8192 |     9     9    10     10 |   122   123   122 |  1000  1000  1000 |           1.00
//	long         8    8192 |     8     7     5      8 |  1366  1583  2005 |   382   366   444 |           0.74
//
// A row differs from one run to the next by up to a tenth. The model's time goes into arithmetic here: even arrays bring at
// most a fifth. Where the plain server's p99 at 64 clients is far below 64 clients by its rate, it answers some of them and
// leaves others waiting for longer than the window, which the figure does not show. The last row's windows held a few batches
// only. A call has a price of its own in the stand-in's cost model (5 ms, and 0.1 ms a text, 64 clients): there the queue
// reaches 0.96 of one client with arrays of 64, and 0.855 of what the costs alone would allow.
//
// The queue's own work on a text (BenchmarkServe) is 10 allocations and 704 bytes for a request by itself, and less than one
// and 145 bytes where 64 share a call; decoding and encoding by encoding/json (BenchmarkNaive) takes 39 and 23, 1.9 KB and
// 1.6 KB.
//
// # Concurrency
//
// One mutex guards a queue; it is never held over I/O. Each batch is one goroutine, which works on copies of its requests:
// a request may end, by a departure for example, before the call that carries it does.
package batch
