package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
)

var dist = flag.String("dist", "", "folder with the images to test, see make image-check")

// TestImages starts the compose file's gateway, warmer and runner by hand, each from its image alone: as the image's user, with a root
// that is read-only, no privileges, and the compose file's settings. Redis and the engine are this machine's. A chat is answered.
func TestImages(t *testing.T) {
	if *dist == "" {
		t.Skip("no images: run make image-check")
	}
	if os.Getuid() != 0 {
		t.Skip("only root may change the root folder")
	}
	c := readCompose(t, "compose.yaml")
	models := testenv.Models(t)
	engines := filepath.Dir(testenv.Engines(t).LlamaServer)
	config := t.TempDir()
	put(t, filepath.Join(config, "models.yaml"), `models:
  chat: {type: llm, recipe: llamacpp, checkpoint: /models/`+filepath.Base(models.Gemma)+`, device: cpu, options: {ctx_size: 2048}}
hosts:
  runner: {driver: local, devices: [cpu]}
`)
	if err := os.Chmod(config, 0o755); err != nil {
		t.Fatal(err)
	}
	names := strings.NewReplacer(
		"redis:6379", testenv.Redis(t), "runner:8090", "127.0.0.1:0", "0.0.0.0:8080", "127.0.0.1:0",
		"${REVEILLE_RUNNER_SECRET:?}", secret, "./config:", config+":", "./models:", filepath.Dir(models.Gemma)+":",
	)
	gateway, runner := unpack(t, "gateway", runtime.GOARCH), unpack(t, "runner", runtime.GOARCH)

	r := runner.start(t, "runner", c.Services["runner"], names, engines+":/opt/reveille/engines:ro", "/usr/lib:/usr/lib:ro", "/usr/lib64:/usr/lib64:ro")
	r.Await(listens)
	w := gateway.start(t, "warmer", c.Services["warmer"], names)
	g := gateway.start(t, "gateway", c.Services["gateway"], names)
	url := "http://" + g.Await(listens)[1]

	var health *exec.Cmd
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		test := c.Services["gateway"].Healthcheck.Test
		health = gateway.command(t, nil, nil, append(test[1:], "--url="+url)...)
		out, err := health.CombinedOutput()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v: %v: %s", test, err, out)
		}
	}
	if out, err := gateway.command(t, nil, nil, "/usr/local/bin/gateway", "health", "--url=http://127.0.0.1:1").CombinedOutput(); err == nil {
		t.Errorf("the health check finds a gateway where none is: %s", out)
	}

	body := `{"model":"chat","messages":[{"role":"user","content":"Say hello"}],"max_tokens":8}`
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := (&http.Client{Timeout: 3 * time.Minute}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Usage struct {
			Tokens int `json:"completion_tokens"`
		} `json:"usage"`
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, json.Unmarshal(text, &answer)); err != nil || resp.StatusCode != http.StatusOK || answer.Usage.Tokens != 8 {
		t.Errorf("status %d: %s, %v", resp.StatusCode, text, err)
	}

	for _, p := range []*testenv.Program{g, w, r} {
		p.Signal(syscall.SIGTERM)
		select {
		case <-p.Exited():
			if !p.State().Success() {
				t.Errorf("ended with %v:\n%s", p.State(), p.Log())
			}
		case <-time.After(time.Minute):
			t.Error("has not ended a minute after SIGTERM")
		}
	}
}

const secret = "a secret of sixteen or more"

var listens = regexp.MustCompile(`msg="(?:gateway|runner) listens" (?:host=\S+ )?addr=(\S+)`)

// TestImagesHaveEveryArchitecture compares the images for all architectures, which only differ in their programs.
func TestImagesHaveEveryArchitecture(t *testing.T) {
	if *dist == "" {
		t.Skip("no images: run make image-check")
	}
	for _, name := range []string{"gateway", "runner"} {
		for _, arch := range []string{"amd64", "arm64"} {
			c := unpack(t, name, arch)
			if c.config.User != "65532:65532" || !slices.Equal(c.config.Entrypoint, []string{"/usr/local/bin/" + name}) {
				t.Errorf("%s for %s: %+v", name, arch, c.config)
			}
			built, err := os.ReadFile(filepath.Join(*dist, name+"_linux_"+arch))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(c.root, "usr/local/bin", name)
			packed, err := os.ReadFile(file)
			if err != nil || !bytes.Equal(packed, built) {
				t.Errorf("%s for %s does not have the program that was built: %v", name, arch, err)
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o755 || info.ModTime().Unix() != 0 {
				t.Errorf("%s for %s: %v, %v", name, arch, info, err)
			}
		}
	}
}

// container is an unpacked image.
type container struct {
	root   string
	config imageConfig
}

// imageConfig is the part of OCI's image configuration that a container engine would use here.
type imageConfig struct {
	User            string
	Env             []string
	Entrypoint, Cmd []string
}

// unpack unpacks an architecture's image of an archive with buildah, with its files' owners and modes.
func unpack(t *testing.T, name, arch string) container {
	t.Helper()
	store := t.TempDir()
	for dir := store; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // for the image's user
			t.Fatal(err)
		}
	}
	buildah := func(args ...string) []byte {
		t.Helper()
		args = append([]string{"--storage-driver", "vfs", "--root", store, "--runroot", store}, args...)
		out, err := exec.Command("buildah", args...).Output()
		if err != nil {
			t.Fatalf("buildah %q: %v: %s", args, err, err.(*exec.ExitError).Stderr)
		}
		return bytes.TrimSpace(out)
	}
	buildah("from", "--quiet", "--arch", arch, "--name", "c", "oci-archive:"+filepath.Join(*dist, name+"_oci.tar"))
	t.Cleanup(func() { buildah("rm", "--all") })
	var of struct{ OCIv1 struct{ Config imageConfig } }
	if err := json.Unmarshal(buildah("inspect", "c"), &of); err != nil {
		t.Fatal(err)
	}
	return container{string(buildah("mount", "c")), of.OCIv1.Config}
}

// run mounts what a container engine would and becomes the program: root, then SOURCE:TARGET:ro or TARGET for each mount until --,
// then the command.
const run = `set -e
root=$1 image=$PATH; shift
PATH=/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p $root/proc $root/dev
mount --bind $root $root
places=()
while [ "$1" != -- ]; do
  IFS=: read -r source target _ <<<"$1"; shift
  if [ -z "$target" ]; then mkdir -p $root$source; places+=("$source"); continue; fi
  if [ ! -e "$source" ]; then continue; fi
  mkdir -p $root$target
  mount --rbind $source $root$target
  mount -o remount,bind,ro $root$target
done
shift
if [ -e $root/usr/lib/os-release ]; then ln -sfn usr/lib $root/lib; ln -sfn usr/lib64 $root/lib64; fi
mount -o remount,bind,ro $root
mount --rbind /proc $root/proc
mount --rbind /dev $root/dev
for p in "${places[@]}"; do mount -t tmpfs -o mode=0700,uid=65532,gid=65532 none $root$p; done
vars=()
for v in $(compgen -e); do if [[ $v = REVEILLE_* ]]; then vars+=("$v=${!v}"); fi; done
exec env -i PATH="$image" "${vars[@]}" $(command -v setpriv) --no-new-privs $(command -v chroot) --userspec=65532:65532 $root "$@"`

// command is a program in the container, with no variables but its image's and env.
func (c container) command(t *testing.T, env, mounts []string, argv ...string) *exec.Cmd {
	t.Helper()
	args := slices.Concat([]string{"--mount", "/bin/bash", "-c", run, "run", c.root}, mounts, []string{"--"}, argv)
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = slices.Concat(os.Environ(), c.config.Env, env)
	return cmd
}

// start starts a service of the compose file. names replaces what has another name or address here.
func (c container) start(t *testing.T, name string, s service, names *strings.Replacer, mounts ...string) *testenv.Program {
	t.Helper()
	if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) {
		t.Errorf("%s is not confined", name)
	}
	env := slices.Clone(c.config.Env)
	for k, value := range s.Environment {
		v := names.Replace(fmt.Sprint(value))
		if strings.HasPrefix(v, "${REVEILLE_") {
			v = secret
		}
		env = append(env, k+"="+v)
	}
	for i := range env { // the image's too
		env[i] = names.Replace(env[i])
	}
	for _, v := range s.Volumes {
		if v = names.Replace(v); !strings.HasPrefix(v, "/") { // a named volume
			_, v, _ = strings.Cut(v, ":")
		}
		mounts = append(mounts, v)
	}
	mounts = append(mounts, s.Tmpfs...)
	argv := slices.Concat(c.config.Entrypoint, c.config.Cmd)
	if len(s.Entrypoint) > 0 {
		argv = slices.Concat(s.Entrypoint, s.Command)
	}
	cmd := c.command(t, nil, mounts, argv...)
	return testenv.StartProgramEnv(t, env, name, cmd.Path, cmd.Args[1:]...)
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
