package sleep

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/kit"
)

// Redis loses its data under a host that serves. To the sweeps before its runner's next beat its machine runs without a
// runner; they leave it on, and it serves again.
func TestFlushUnderAServingHost(t *testing.T) {
	t.Parallel()
	var stops atomic.Int64
	began := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	ec2 := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.FormValue("Action") {
		case "DescribeInstances":
			fmt.Fprintf(w, `<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>i-0123456789abcdef0</instanceId>
				<instanceState><name>running</name></instanceState><launchTime>%s</launchTime>
				<tagSet><item><key>Host</key><value>box</value></item></tagSet></item></instancesSet></item></reservationSet></DescribeInstancesResponse>`, began)
		case "StopInstances":
			stops.Add(1)
			fmt.Fprint(w, `<StopInstancesResponse/>`)
		}
	}))
	t.Cleanup(ec2.Close)
	p := emptyPool(t)
	p.start(1, "{driver: ec2, instance: i-0123456789abcdef0, region: us-east-1, devices: [cpu]}")
	sweep := func() {
		t.Helper()
		cmd := exec.Command(testenv.Build(t, "warmer"), "--once", "--project=p", "--host-idle=-1s")
		cmd.Env = append(os.Environ(), "REVEILLE_REDIS_URL="+p.url(), "REVEILLE_RUNNER_SECRET="+secret, "AWS_ENDPOINT_URL="+ec2.URL,
			"AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=x", "AWS_SECRET_ACCESS_KEY=x", "AWS_EC2_METADATA_DISABLED=true")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
	}
	field := func(name string) string { return p.rdb.HGet(t.Context(), "rv:{main}:host:box", name).Val() }
	runner := p.boot(testenv.Standin(t))
	kit.Becomes(t, "the host", "ready", func() string { return field("state") })
	use(t, client(t), p.gateways[0].URL, "m", false)

	runner.Signal(syscall.SIGSTOP) // its next beat comes late
	if err := p.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	kit.Becomes(t, "the host, as the gateway's catalog has it", "asleep", func() string { return field("state") })
	kit.Eventually(t, "the catalog is back", func() bool { return p.rdb.Exists(t.Context(), "rv:{main}:catalog").Val() == 1 })
	sweep()
	sweep()
	if n := stops.Load(); n > 0 {
		t.Fatalf("sweeps stopped the machine of a host that serves %d times", n)
	}
	if field("orphan_ms") == "" {
		t.Error("the sweeps did not see the machine")
	}
	runner.Signal(syscall.SIGCONT)
	kit.Becomes(t, "the host", "ready", func() string { return field("state") })
	use(t, client(t), p.gateways[0].URL, "m", false)
	sweep()
	if n := stops.Load(); n > 0 || field("orphan_ms") != "" {
		t.Errorf("%d stops, noted at %q", n, field("orphan_ms"))
	}
}
