package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/VictoriaMetrics/metrics"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"

	"reveille/infra/catalog"
	"reveille/runner/weights"
	"reveille/runner/weights/hf"
	"reveille/runner/weights/s3"
)

// Weights are the flags for weights that are fetched from a source.
type Weights struct {
	WeightsDir   string `help:"Folder for weights fetched from s3:// and hf://, used by this runner alone; default weights-HOST in the state folder."`
	WeightsBytes string `help:"Maximum disk space for fetched weights; the least recently used are removed first. 0 is half of the space that they and the free disk have at startup." default:"0"`
	HFEndpoint   string `help:"Hub from which hf:// weights are fetched." plain:"HF_ENDPOINT" default:"https://huggingface.co"`
	HFToken      string `help:"Token for the hub's gated and private repositories." plain:"HF_TOKEN"`
}

// parse checks the flags and returns the size limit and the hub.
func (w Weights) parse() (limit int64, hub *hf.Source, err error) {
	var bytesErr, hubErr error
	if w.WeightsBytes != "" {
		if limit, bytesErr = catalog.ParseSize(w.WeightsBytes); bytesErr != nil {
			bytesErr = fmt.Errorf("--weights-bytes: %w", bytesErr)
		}
	}
	if hub, hubErr = hf.New(w.HFEndpoint, w.HFToken); hubErr != nil {
		hubErr = fmt.Errorf("--hf-endpoint: %w", hubErr)
	}
	return limit, hub, errors.Join(bytesErr, hubErr)
}

// weightsCache opens the host's cache of fetched weights. AWS's settings and credentials come from the environment when
// an s3:// model is first needed. end closes the cache and everything that belongs to it.
func weightsCache(s Settings, host string, set *metrics.Set, log *slog.Logger) (cache *weights.Cache, end func(), err error) {
	limit, hub, err := s.Weights.parse()
	if err != nil {
		return nil, nil, err
	}
	dir := s.WeightsDir
	if dir == "" {
		dir = filepath.Join(s.StateDir, "weights-"+host)
		if os.Getuid() == 0 { // engines run as another user and must reach the folder; secret files have their own modes
			if err := os.Chmod(s.StateDir, 0o711); err != nil {
				return nil, nil, err
			}
		}
	}
	bucket := s3.New(func(ctx context.Context) (s3.API, error) {
		cfg, err := awsconfig.LoadDefaultConfig(ctx)
		return s3.Client(cfg), err
	})
	cache, err = weights.Open(weights.Config{
		Dir: dir, Bytes: limit, Sources: map[catalog.Scheme]weights.Source{catalog.SchemeHF: hub, catalog.SchemeS3: bucket}, Log: log, Metrics: set,
	})
	if errors.Is(err, weights.ErrInUse) {
		err = fmt.Errorf("%w; use another --weights-dir for this runner", err)
	}
	return cache, func() {
		cache.Close()
		hub.Close()
	}, err
}
