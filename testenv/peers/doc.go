// Package peers compares what a warm request costs through Reveille with what it costs through plain proxies and
// llama-swap: in one run, on one machine, over the same engine. [MessageLength] is for its programs in bare; the rest is a
// test, which `make bench-peers` runs at full length.
//
// All contenders run at the same time and are asked in turns. A window asks each of them for each case; the order moves on
// by one from window to window, so that drift of the machine falls on all alike. A figure is the median over the windows.
// A measurement during which other programs took more than a tenth of the machine is made once more if there is time, and
// counted as disturbed if that is no better.
//
// CPU time is what /proc tells of all processes of a contender, without its engine. Memory is their proportional set size
// (shared pages count once), which does not hold the kernel's buffers of sockets.
package peers
