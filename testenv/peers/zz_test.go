package peers

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
)

var zzIdle = flag.Bool("zz.idle", false, "")

func TestZZRedis(t *testing.T) {
	engine := startEngine(t)
	var c contender
	for _, x := range contenders {
		if x.name == both {
			c = x
		}
	}
	run, err := c.run(t, engine)
	if err != nil {
		t.Fatal(err)
	}
	addr := ""
	for _, p := range family() {
		title := strings.Fields(p.Args)
		if slices.Contains(run.pids, p.PID) && len(title) >= 2 && filepath.Base(title[0]) == "redis-server" {
			addr = title[1]
		}
	}
	_, port, _ := strings.Cut(addr, ":")
	settle(3 * time.Second)
	cli := func(args ...string) string {
		out, _ := exec.Command("redis-cli", append([]string{"-p", port}, args...)...).CombinedOutput()
		return string(out)
	}
	_ = testenv.Root
	cli("config", "resetstat")
	settle(5 * time.Second)
	fmt.Fprintln(os.Stderr, "IDLE 5s\n"+cli("info", "commandstats")+cli("info", "stats")[:200])
	cli("config", "resetstat")
	mon := exec.Command("redis-cli", "-p", port, "monitor")
	f, _ := os.Create("/tmp/mem/monitor.log")
	mon.Stdout = f
	mon.Start()
	for range 3 {
		s, err := drive(ctx, run, all[0], 128, 2*time.Second)
		fmt.Fprintf(os.Stderr, "rate %v commands %v %v\n", s.rate, s.commands, err)
	}
	mon.Process.Kill()
	fmt.Fprintln(os.Stderr, "LOAD ~6.6s\n"+cli("info", "commandstats"))
}
