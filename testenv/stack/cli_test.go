package stack

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
)

// cli answers the commands of the AWS CLI that user data gives, which machines have and this computer may not: what a
// command prints is the response's body. The calls are made with the credentials of the machine's role.
type cli struct{ aws sdk.Config }

// ServeHTTP runs one command: its words are the values of args.
func (c cli) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var words []string
	flags := map[string]string{}
	for args := r.Form["args"]; len(args) > 0; args = args[1:] {
		switch {
		case args[0] == "--only-show-errors", args[0] == "--no-follow-symlinks":
		case args[0] == "--delete":
			flags[args[0]] = "yes"
		case strings.HasPrefix(args[0], "--") && len(args) > 1:
			flags[args[0]] = args[1]
			args = args[1:]
		default:
			words = append(words, args[0])
		}
	}
	var err error
	switch command := strings.Join(words[:min(2, len(words))], " "); command {
	case "s3 cp":
		err = c.copy(r, w, words[2], words[3])
	case "s3 sync":
		err = c.sync(r, words[2], words[3], flags["--delete"] != "")
	case "secretsmanager get-secret-value":
		var secret *secretsmanager.GetSecretValueOutput
		secret, err = secretsmanager.NewFromConfig(c.aws).GetSecretValue(r.Context(), &secretsmanager.GetSecretValueInput{SecretId: sdk.String(flags["--secret-id"])})
		if err == nil {
			fmt.Fprintln(w, *secret.SecretString)
		}
	case "autoscaling complete-lifecycle-action":
		_, err = autoscaling.NewFromConfig(c.aws).CompleteLifecycleAction(r.Context(), &autoscaling.CompleteLifecycleActionInput{
			AutoScalingGroupName: sdk.String(flags["--auto-scaling-group-name"]), LifecycleHookName: sdk.String(flags["--lifecycle-hook-name"]),
			InstanceId: sdk.String(flags["--instance-id"]), LifecycleActionResult: sdk.String(flags["--lifecycle-action-result"]),
		})
	default:
		err = fmt.Errorf("aws %s: not played here", command)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (c cli) objects() *s3.Client {
	return s3.NewFromConfig(c.aws, func(o *s3.Options) { o.UsePathStyle = true })
}

// place reads s3://bucket/key.
func place(uri string) (bucket, key string) {
	bucket, key, _ = strings.Cut(strings.TrimPrefix(uri, "s3://"), "/")
	return bucket, key
}

// copy copies an object to a file, or prints it for "-".
func (c cli) copy(r *http.Request, out io.Writer, from, to string) error {
	bucket, key := place(from)
	object, err := c.objects().GetObject(r.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return err
	}
	defer object.Body.Close()
	if to != "-" {
		file, err := os.Create(to)
		if err != nil {
			return err
		}
		defer file.Close()
		out = file
	}
	_, err = io.Copy(out, object.Body)
	return err
}

// sync copies what is below a prefix into a folder, unless a file has an object's size already. It deletes other files
// if told.
func (c cli) sync(r *http.Request, from, to string, deletes bool) error {
	bucket, prefix := place(from)
	list, err := c.objects().ListObjectsV2(r.Context(), &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: sdk.String(prefix + "/")})
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, o := range list.Contents {
		target := filepath.Join(to, strings.TrimPrefix(*o.Key, prefix+"/"))
		wanted[target] = true
		if info, err := os.Stat(target); err == nil && info.Size() == *o.Size {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := c.copy(r, nil, "s3://"+bucket+"/"+*o.Key, target); err != nil {
			return err
		}
	}
	if !deletes {
		return nil
	}
	return filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && !wanted[path] {
			err = os.Remove(path)
		}
		return err
	})
}
