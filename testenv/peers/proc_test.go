package peers

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"reveille/testenv"
)

const tick = 10 * time.Millisecond // of /proc/stat, the same on every Linux

// cpuTime is the user and system time that processes have used so far. It counts threads that still run: none of the
// contenders ends threads while it works.
func cpuTime(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, f := range files {
			if text, err := os.ReadFile(f); err == nil {
				sum += onCPU(string(text))
			}
		}
	}
	return sum
}

// onCPU reads the first number of a schedstat: the time that a thread ran, in ns.
func onCPU(schedstat string) time.Duration {
	first, _, _ := strings.Cut(schedstat, " ")
	n, _ := strconv.ParseInt(first, 10, 64)
	return time.Duration(n)
}

// machineTime is the time that all processes of the machine and its neighbours have used so far.
func machineTime() time.Duration {
	text, _ := os.ReadFile("/proc/stat")
	return processTime(string(text))
}

// processTime adds the user, nice, system and stolen ticks of a /proc/stat. Interrupts are nobody's.
func processTime(stat string) (sum time.Duration) {
	line, _, _ := strings.Cut(stat, "\n")
	for i, field := range strings.Fields(line) {
		if i == 1 || i == 2 || i == 3 || i == 8 {
			n, _ := strconv.ParseInt(field, 10, 64)
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// memory is the proportional set size of processes in KB.
func memory(pids []int) (sum float64) {
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		sum += proportional(string(text))
	}
	return sum
}

// proportional reads the Pss of a smaps_rollup, in KB.
func proportional(rollup string) float64 {
	for line := range strings.Lines(rollup) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
			n, _ := strconv.ParseFloat(f[1], 64)
			return n
		}
	}
	return 0
}

// family is this process and all that it has started.
func family() []testenv.Process {
	return append(testenv.Descendants(os.Getpid()), testenv.Process{PID: os.Getpid()})
}

// pids are the numbers of processes, without engines.
func pids(all []testenv.Process) (out []int) {
	for _, p := range all {
		if !isEngine(p.Args) {
			out = append(out, p.PID)
		}
	}
	return out
}

func isEngine(args string) bool {
	return strings.Contains(args, "/bare engine ") || strings.Contains(args, "llama-server --")
}
