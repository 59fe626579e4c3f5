package mmcache

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("MMCACHE_TEST_ROLE") == "runner" {
		runnerMain()
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		http.DefaultClient.CloseIdleConnections()
		if driverDir != "" {
			_ = os.RemoveAll(driverDir)
		}
		if libraryPath != "" {
			_ = os.RemoveAll(filepath.Dir(libraryPath))
		}
		os.Exit(code)
	}))
}
