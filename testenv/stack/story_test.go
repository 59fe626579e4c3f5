package stack

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/imds"
	"reveille/testenv/kit"
	"reveille/testenv/lambda"
)

const (
	apiKey  = "a-key-for-the-tests" // of newTerraform
	weights = "weights that the stand-in never reads"
)

// story is what happens to a stack that was applied: machines are played, functions run, and clients ask.
type story struct {
	t       *testing.T
	cloud   *cloud
	cluster *testenv.RedisCluster
	rdb     redis.UniversalClient
	dist    string
	port    int // of the gateway's instance

	gateway, gpu, npu *machine            // what was booted so far
	pair              map[string]*machine // by its host

	warmer *lambda.Function // once it ran
	event  string           // of its schedule
}

// fill puts into the bucket what the operator brings: engine programs and weights.
func (s *story) fill(bucket string) {
	s.t.Helper()
	engine, err := os.ReadFile(testenv.Standin(s.t))
	if err != nil {
		s.t.Fatal(err)
	}
	s.cloud.PutObject(bucket, "engines/gpu/standin", string(engine))
	s.cloud.PutObject(bucket, "engines/npu/standin", string(engine))
	s.cloud.PutObject(bucket, "models/chat.bin", weights)
}

// play makes the machine of an instance.
func (s *story) play(name, address string, i types.Instance) *machine {
	s.t.Helper()
	return s.cloud.machine(name, address, s.cloud.InstanceRole(*i.InstanceId), identity(i, address), "SSL_CERT_FILE="+s.cluster.Authority)
}

// loopback is an address of this computer that nothing else listens at, for a machine's fixed ports.
func loopback() string {
	b := make([]byte, 3)
	_, _ = rand.Read(b) // never fails
	return net.IPv4(127, 1|b[0]>>1, b[1], 1|b[2]>>1).String()
}

// gatewayStarts boots the gateway's instance: it serves at the stack's address, to whoever has a key.
func (s *story) gatewayStarts() {
	s.t.Helper()
	i := s.cloud.instance("Name", deployment+"-gateway")
	if i == nil {
		s.t.Fatal("there is no gateway instance")
	}
	out, err := s.cloud.hosts.DescribeAddresses(s.t.Context(), &ec2.DescribeAddressesInput{Filters: []types.Filter{
		{Name: sdk.String("instance-id"), Values: []string{*i.InstanceId}},
	}})
	if err != nil || len(out.Addresses) != 1 {
		s.t.Fatalf("addresses of the gateway: %+v, %v", out, err)
	}
	s.gateway = s.play("gateway", *out.Addresses[0].PublicIp, *i) // the emulator's addresses are of 127.0.0.0/8
	s.gateway.firstBoot(s.cloud.userData(*i))
	gateway := s.gateway.service("reveille-gateway.service")
	kit.Within(s.t, patience, "the gateway is ready", func() bool {
		select {
		case <-gateway.Exited():
			s.t.Fatalf("the gateway ended: %v\n%s", gateway.State(), gateway.Log())
		default:
		}
		return s.status(s.url()+"/ready", "") == http.StatusOK && s.status(s.url()+"/live", "") == http.StatusOK
	})
	for key, want := range map[string]int{"": http.StatusUnauthorized, "another-key-of-16": http.StatusUnauthorized, apiKey: http.StatusOK} {
		if got := s.status(s.url()+"/v1/models", key); got != want {
			s.t.Errorf("GET /v1/models with key %q: %d, want %d", key, got, want)
		}
	}
}

// url is the gateway's instance.
func (s *story) url() string {
	return "http://" + net.JoinHostPort(s.gateway.address, strconv.Itoa(s.port))
}

// status is that of a GET, 0 when there was no response.
func (s *story) status(url, key string) int {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	return calls.Do(calls.Client(s.t, 1), req, nil).Status
}

// tries is how often a call is made that finds the cache slower than a gateway waits, as on a machine with too much to do.
const tries = 4

// ask posts to a path in the background.
func (s *story) ask(path, body string) <-chan calls.Answer {
	got := make(chan calls.Answer, 1)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	s.t.Cleanup(cancel)
	client, url := calls.Client(s.t, 1), s.url()+path
	go func() {
		for try := 1; ; try++ {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
			if err == nil {
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Authorization", "Bearer "+apiKey)
			}
			a := calls.Do(client, req, err)
			if a.Code() != "state_unavailable" || try == tries {
				got <- a
				return
			}
			s.t.Logf("%s, try %d: %v", path, try, a)
			time.Sleep(time.Duration(a.RetryAfter()) * time.Second)
		}
	}()
	return got
}

// hostInstalls: the instance of the GPU pool runs once it is made, installs itself, and is stopped once it is idle.
func (s *story) hostInstalls() {
	s.t.Helper()
	i := s.cloud.running("gpu-1")
	s.gpu = s.play("gpu-1", loopback(), i)
	s.gpu.firstBoot(s.cloud.userData(i))
	s.ready("gpu-1")
	kit.Within(s.t, patience, "the installed host sleeps", func() bool { s.sweep(); return s.asleep("gpu-1", s.gpu) })
	s.stopped("gpu-1")
}

// hostWakes: a chat wakes the stopped instance of the GPU pool, which boots from its disk.
func (s *story) hostWakes() {
	s.t.Helper()
	answer := s.ask("/v1/chat/completions", calls.ChatBody("chat", 3, true))
	s.cloud.running("gpu-1")
	s.gpu.boot()
	s.ready("gpu-1")
	for range 3 {
		s.step("gpu-1", "chat")
	}
	if a := <-answer; !a.OK() {
		s.t.Fatalf("chat: %v", a)
	}
	if got := digest(s.t, s.gpu.path("/opt/reveille/bin/"+library)); !bytes.Equal(got, digest(s.t, filepath.Join(s.dist, library))) {
		s.t.Error("the encoder cache's library is not beside the runner")
	}
	kept, err := filepath.Glob(s.gpu.path("/var/lib/reveille/weights-gpu-1/*"))
	if err != nil || len(kept) == 0 {
		s.t.Errorf("no weights were fetched: %v", err)
	}
}

// groupWakes: an embedding wakes the group of the NPU pool. Its machine was a spare of the warm pool before.
func (s *story) groupWakes() {
	s.t.Helper()
	group := deployment + "-npu-1"
	answer := s.ask("/v1/embeddings", `{"model":"vectors","input":"hi"}`)
	i := s.cloud.running("npu-1")
	npu := s.play("npu-1", loopback(), i)
	s.npu = npu

	npu.metadata.Set("instance-id", "i-00000000000000000") // the group knows of no spares here
	npu.metadata.Set(imds.Target, "Warmed:Stopped")
	npu.firstBoot(s.cloud.userData(i))
	if len(npu.services) > 0 {
		s.t.Errorf("a spare has services: %v", npu.services)
	}
	npu.off()
	if got := s.cloud.lifecycle(group); got != "Pending:Wait" {
		s.t.Errorf("before its runner is ready, the group's machine is %s", got)
	}

	npu.metadata.Set("instance-id", *i.InstanceId)
	npu.metadata.Set(imds.Target, "InService")
	npu.boot()
	s.ready("npu-1")
	if a := <-answer; !a.OK() {
		s.t.Fatalf("embedding: %v", a)
	}
	kit.Within(s.t, patience, "the group's machine is in service", func() bool { return s.cloud.lifecycle(group) == "InService" })
}

// pairWakes: both hosts of the pool that is one group wake. Each machine learns at its boot which of them it is.
func (s *story) pairWakes() {
	s.t.Helper()
	answers := map[string]<-chan calls.Answer{}
	for _, host := range []string{"pair-1", "pair-2"} {
		answers[host] = s.ask("/internal/hosts/"+host+"/wake", "{}")
	}
	var made []types.Instance
	kit.Within(s.t, patience, "the group has two machines that run", func() bool {
		made = s.cloud.instances("Host", "pair")
		return len(made) == 2 && !slices.ContainsFunc(made, func(i types.Instance) bool { return i.State.Name != types.InstanceStateNameRunning })
	})
	booted := map[string]*machine{}
	for _, i := range made {
		m := s.play("pair-"+*i.InstanceId, loopback(), i)
		m.metadata.Set(imds.Target, "InService")
		m.firstBoot(s.cloud.userData(i))
		booted[*i.InstanceId] = m
	}
	s.pair = map[string]*machine{}
	for host, answer := range answers {
		s.ready(host)
		if a := <-answer; !a.OK() {
			s.t.Fatalf("wake of %s: %v", host, a)
		}
		if s.pair[host] = booted[s.machineOf(host)]; s.pair[host] == nil {
			s.t.Fatalf("the machine of %s is %q, which is none of its group", host, s.machineOf(host))
		}
	}
	if s.pair["pair-1"] == s.pair["pair-2"] {
		s.t.Fatal("both hosts have the same machine")
	}
	kit.Within(s.t, patience, "both machines are in service", func() bool { return s.cloud.lifecycle(deployment+"-pair") == "InService InService" })
}

// slotSleeps: the operator puts one host of the group to sleep. That host's machine is ended, and no other takes its place.
func (s *story) slotSleeps() {
	s.t.Helper()
	stays := s.machineOf("pair-1")
	if a := <-s.ask("/internal/hosts/pair-2/sleep", "{}"); !a.OK() {
		s.t.Fatalf("sleep of pair-2: %v", a)
	}
	s.pair["pair-2"].off()
	if g := s.cloud.group(deployment + "-pair"); len(g.Instances) != 1 || *g.Instances[0].InstanceId != stays || *g.DesiredCapacity != 1 {
		s.t.Errorf("of the group the machine of pair-1, %s, was to stay: %+v", stays, g)
	}
}

// machineOf is the id of the machine that a host of a group is.
func (s *story) machineOf(host string) string { return s.field("host:"+host, "machine") }

// hostsSleep: the warmer puts all hosts to sleep: the instance is stopped, the groups are empty.
func (s *story) hostsSleep() {
	s.t.Helper()
	kit.Within(s.t, patience, "all hosts sleep", func() bool {
		s.sweep()
		gpu, npu, pair := s.asleep("gpu-1", s.gpu), s.asleep("npu-1", s.npu), s.asleep("pair-1", s.pair["pair-1"])
		return gpu && npu && pair
	})
	s.stopped("gpu-1")
	for _, pool := range []string{"npu-1", "pair"} {
		kit.Within(s.t, patience, "the group is empty", func() bool {
			return s.cloud.lifecycle(deployment+"-"+pool) == "" && len(s.cloud.instances("Host", pool)) == 0
		})
	}
	if n := *s.cloud.group(deployment + "-pair").DesiredCapacity; n != 0 {
		s.t.Errorf("the group of two hosts that sleep still wants %d machines", n)
	}
	if log := s.warmer.Log(); !strings.Contains(log, `"Namespace":"Reveille"`) || !strings.Contains(log, `"HostsRunning":3`) {
		s.t.Errorf("no metrics in the warmer's log, or not of three machines:\n%s", log)
	}
}

// sweep sends the warmer its schedule's event.
func (s *story) sweep() {
	s.t.Helper()
	if s.warmer == nil {
		made, ok := s.cloud.functions()["warmer"]
		s.event = made.Events["rate(1 minute)"]
		if !ok || s.event == "" {
			s.t.Fatalf("functions: %+v", s.cloud.functions())
		}
		s.warmer = lambda.Start(s.t, lambda.Spec{
			Name: "warmer", Binary: unpack(s.t, filepath.Join(s.dist, "warmer.zip"), made.Digest), Timeout: time.Duration(made.Seconds) * time.Second,
			Env: made.env(s.cloud, "warmer", "SSL_CERT_FILE="+s.cluster.Authority),
		})
	}
	r, err := s.warmer.Invoke([]byte(s.event))
	var answer struct{ Actions, Failures *int }
	if err == nil {
		err = json.Unmarshal(r.Payload, &answer)
	}
	if err != nil || answer.Actions == nil && !r.Failed {
		s.t.Fatalf("sweep: %v, %s\n%s", err, r.Payload, s.warmer.Log())
	}
}

// asleep reports whether a host is, whose machine is then turned off.
func (s *story) asleep(host string, m *machine) bool {
	s.t.Helper()
	if s.field("host:"+host, "state") != "asleep" {
		return false
	}
	m.off()
	return true
}

// stopped waits until a host's instance is.
func (s *story) stopped(host string) {
	s.t.Helper()
	kit.Within(s.t, patience, host+" is stopped", func() bool {
		return s.cloud.instance("Host", host).State.Name == types.InstanceStateNameStopped
	})
}

// field reads a field of a record of the pool, "" when there is none.
func (s *story) field(record, name string) string {
	s.t.Helper()
	v, err := s.rdb.HGet(s.t.Context(), "rv:{"+deployment+"}:"+record, name).Result()
	if err != nil && err != redis.Nil {
		s.t.Fatal(err)
	}
	return v
}

// ready waits until a host is.
func (s *story) ready(host string) {
	s.t.Helper()
	kit.Within(s.t, patience, host+" is ready", func() bool { return s.field("host:"+host, "state") == "ready" })
}

// step lets a model's engine make one token, once it is loaded.
func (s *story) step(host, model string) {
	s.t.Helper()
	record := "model:" + host + ":" + model
	kit.Within(s.t, patience, model+" is loaded", func() bool { return s.field(record, "state") == "loaded" })
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, strings.TrimSuffix(s.field(record, "backend_url"), "/v1")+"/standin/step", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%s/environ", s.field(record, "pid")))
	if err != nil {
		s.t.Fatal(err)
	}
	env := strings.Split(string(raw), "\x00")
	at := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "STANDIN_API_KEY=") })
	if at < 0 {
		s.t.Fatalf("the engine of %s has no key", model)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimPrefix(env[at], "STANDIN_API_KEY="))
	if a := calls.Do(calls.Client(s.t, 1), req, nil); a.Status != http.StatusNoContent {
		s.t.Fatalf("step of %s: %v", model, a)
	}
}
