package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"reveille/infra/recipe"
	"reveille/runner/devices"
)

// useTimeout is the timeout of each command that checks whether a machine is in use.
const useTimeout = 3 * time.Second

// busyGPU is the utilization of a GPU, in percent, from which somebody uses it: a desktop alone stays below.
const busyGPU = 20

// useCheck reads --awake-while. The check that it returns says why this machine must stay on although its host is idle,
// "" if nothing speaks against sleep; nil for off.
func (s Settings) useCheck() (func(context.Context) string, error) {
	command := s.AwakeWhile
	if command == "" && s.SleepCommand != "" {
		command = "auto"
	}
	switch command {
	case "", "off":
		return nil, nil
	case "auto":
		return machineInUse, nil
	}
	argv, err := recipe.SplitArgs(command)
	if err == nil && len(argv) > 0 {
		_, err = exec.LookPath(argv[0])
	}
	if err != nil || len(argv) == 0 {
		return nil, fmt.Errorf("--awake-while: %w", errors.Join(err, errors.New("want auto, off or a command")))
	}
	return func(ctx context.Context) string {
		_, err := devices.Command{Limit: useTimeout}.Run(ctx, argv[0], argv[1:]...)
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
			return ""
		}
		if err != nil { // it hangs, or is gone: the owner may be at work
			return fmt.Sprintf("--awake-while: %s %v", filepath.Base(argv[0]), err)
		}
		return filepath.Base(argv[0]) + " says so"
	}, nil
}

// machineInUse asks logind and the GPUs. What is not installed says nothing.
func machineInUse(ctx context.Context) string {
	logind, _ := devices.Command{Limit: useTimeout}.Run(ctx, "busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1",
		"org.freedesktop.login1.Manager", "IdleHint", "BlockInhibited")
	idle, inhibited, _ := strings.Cut(string(logind), "\n")
	if strings.TrimSpace(idle) == "b false" {
		return "a login session is active"
	}
	if _, list, _ := strings.Cut(inhibited, `"`); slices.Contains(strings.Split(strings.TrimRight(list, "\"\n"), ":"), "sleep") {
		return "a program inhibits sleep; see: systemd-inhibit --list"
	}
	loads, _ := devices.Command{Limit: useTimeout}.Run(ctx, "nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
	files, _ := filepath.Glob("/sys/class/drm/card*/device/gpu_busy_percent")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		loads = append(loads, text...)
	}
	for text := range strings.FieldsSeq(string(loads)) {
		if n, err := strconv.Atoi(text); err == nil && n >= busyGPU {
			return fmt.Sprintf("another program uses %d%% of a GPU", n)
		}
	}
	return ""
}
