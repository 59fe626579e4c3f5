// Command peers prints what is added to a request, and how much memory is held, by nginx, by a bare relay on fasthttp, by
// `gateway run`, and by a gateway with a runner of its own process and a redis-server: on one machine, over the same
// engine, which does nothing but answer. `make bench-peers` builds the programs and runs it.
//
//	peers [-windows N] [-seconds S] [-streams N]
//	peers engine --port PORT        the engine
//	peers relay PORT UPSTREAM       the bare relay
//
// All contenders run at the same time and are asked in turns. A figure is the median of the windows; what is added is the
// difference to the engine asked directly. CPU time is that of all processes of a contender without its engine. Memory is
// their proportional set size.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"reveille/testenv"
)

var (
	windows = flag.Int("windows", 5, "how often everything is measured")
	seconds = flag.Float64("seconds", 0.8, "length of a measurement")
	streams = flag.Int("streams", 5000, "idle streams")
)

func main() {
	flag.Parse()
	var err error
	switch args := flag.Args(); {
	case len(args) > 0 && args[0] == "engine":
		err = serveEngine(args[slices.Index(args, "--port")+1])
	case len(args) == 3 && args[0] == "relay":
		err = serveRelay(args[1], args[2])
	case len(args) == 0:
		err = compare()
	default:
		err = fmt.Errorf("unknown arguments %q", args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// work is what clients ask for.
type work struct {
	name  string
	body  string
	conns int
}

func question(size int, fields string) string {
	return `{"model":"one",` + fields + `"messages":[{"role":"user","content":"` + strings.Repeat("word ", size/5) + `"}]}`
}

var works = []work{
	{"1 KB, 1 connection", question(900, ""), 1},
	{"1 KB, 128 connections", question(900, ""), 128},
	{"1 MB, 1 connection", question(1<<20, ""), 1},
	{"stream of 64 chunks, 128 connections", question(100, `"stream":true,"max_tokens":64,`), 128},
}

// figures are of one contender and one work, a value for each window.
type figures struct{ rate, p50, cpu []float64 }

// compare prints the two tables.
func compare() error {
	folder, err := os.MkdirTemp("", "peers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	var all []*contender
	defer func() {
		for _, c := range all {
			c.stop()
		}
	}()
	idle, perStream := map[string]float64{}, map[string]float64{}
	for _, kind := range kinds {
		c, err := kind.begin(folder)
		if err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
		all = append(all, c)
		time.Sleep(time.Second)
		start := memory(c.pids)
		held, err := hold(c.addr, *streams)
		if err != nil {
			return fmt.Errorf("%s: idle streams: %w", kind.name, err)
		}
		time.Sleep(time.Second)
		idle[c.name], perStream[c.name] = start/1024, (memory(c.pids)-start)/float64(*streams)
		for _, conn := range held {
			conn.Close()
		}
	}
	found := map[string]*figures{}
	for n := range *windows {
		for _, w := range works {
			for i := range all {
				c := all[(i+n)%len(all)] // drift of the machine falls on all alike
				f := found[w.name+c.name]
				if f == nil {
					f = &figures{}
					found[w.name+c.name] = f
				}
				if err := drive(c, w, time.Duration(*seconds*float64(time.Second)), f); err != nil {
					return fmt.Errorf("%s, %s: %w", c.name, w.name, err)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "window %d of %d\n", n+1, *windows)
	}
	row := func(name string, of func(c *contender) float64) {
		fmt.Printf("| %s |", name)
		for _, c := range all {
			fmt.Printf(" %.1f |", of(c))
		}
		fmt.Println()
	}
	head := func(title string) {
		fmt.Printf("\n| %s |", title)
		for _, c := range all {
			fmt.Printf(" %s |", c.name)
		}
		fmt.Printf("\n|---|%s\n", strings.Repeat("---|", len(all)))
	}
	head("added to a request")
	for _, w := range works {
		of := func(c *contender) *figures { return found[w.name+c.name] }
		row(w.name+": µs added to the median", func(c *contender) float64 { return median(of(c).p50) - median(of(all[0]).p50) })
		row("the same: CPU µs", func(c *contender) float64 { return median(of(c).cpu) })
		row("the same: requests a second", func(c *contender) float64 { return median(of(c).rate) })
	}
	head("memory")
	row("at the start, MB", func(c *contender) float64 { return idle[c.name] })
	row("after the load, MB", func(c *contender) float64 { return memory(c.pids) / 1024 })
	row("each idle stream, KB", func(c *contender) float64 { return perStream[c.name] })
	return nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// cpuTime is the time that threads of processes ran so far. None of the contenders ends threads while it works.
func cpuTime(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, f := range files {
			text, _ := os.ReadFile(f) // the thread has ended
			first, _, _ := strings.Cut(string(text), " ")
			n, _ := strconv.ParseInt(first, 10, 64)
			sum += time.Duration(n)
		}
	}
	return sum
}

// memory is the proportional set size of processes in KB.
func memory(pids []int) (sum float64) {
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if _, rest, ok := strings.Cut(string(text), "\nPss:"); ok {
			n, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			sum += n
		}
	}
	return sum
}

// children are the processes that this one has started, directly or not, without engines.
func children() (pids []int) {
	for _, p := range testenv.Descendants(os.Getpid()) {
		if !strings.Contains(p.Args, " engine ") {
			pids = append(pids, p.PID)
		}
	}
	return pids
}
