# One bucket: models/ (checkpoints), engines/gpu and engines/npu (engine programs), artifacts/ (what `make dist` built),
# config/models.yaml.
resource "aws_s3_bucket" "models" {
  bucket        = "${local.prefix}-models-${local.account}-${local.region}"
  force_destroy = !local.precious

  tags = local.tags
}

resource "aws_s3_bucket_public_access_block" "models" {
  bucket                  = aws_s3_bucket.models.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "models" {
  bucket = aws_s3_bucket.models.id

  rule {
    bucket_key_enabled = var.kms_key_arn != null

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

# A model or a program that was overwritten or deleted can be taken back for a week.
resource "aws_s3_bucket_versioning" "models" {
  bucket = aws_s3_bucket.models.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "models" {
  bucket = aws_s3_bucket.models.id

  rule {
    id     = "unfinished-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 2
    }
  }

  rule {
    id     = "old-versions"
    status = "Enabled"

    filter {}

    expiration {
      expired_object_delete_marker = true
    }
    noncurrent_version_expiration {
      noncurrent_days = 7
    }
  }

  depends_on = [aws_s3_bucket_versioning.models]
}

data "aws_iam_policy_document" "models_bucket" {
  statement {
    sid       = "RefusePlainHTTP"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.models.arn, "${aws_s3_bucket.models.arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_s3_bucket_policy" "models" {
  count = var.enable_bucket_tls_policy ? 1 : 0

  bucket = aws_s3_bucket.models.id
  policy = data.aws_iam_policy_document.models_bucket.json

  depends_on = [aws_s3_bucket_public_access_block.models]
}

locals {
  # What instances fetch. The encoder cache's library is there only where make dist found a C compiler; hosts do without.
  library   = "libreveille_mm_linux_amd64.so"
  artifacts = toset(concat(["SHA256SUMS", "gateway_linux_arm64", "runner_linux_amd64"], fileexists("${local.dist}/${local.library}") ? [local.library] : []))
}

resource "aws_s3_object" "artifact" {
  for_each = local.artifacts

  bucket      = aws_s3_bucket.models.id
  key         = "artifacts/${each.key}"
  source      = "${local.dist}/${each.key}"
  source_hash = filesha256("${local.dist}/${each.key}")
}

# The models without the hosts, which AWS may have no capacity for yet: the gateway starts with it, and takes models.yaml once
# there is one.
resource "aws_s3_object" "start_yaml" {
  bucket       = aws_s3_bucket.models.id
  key          = "config/start.yaml"
  content      = yamlencode(merge(local.catalogue, { hosts = try(coalesce(local.catalogue.hosts), {}) }))
  content_type = "application/yaml"
}

# Runners take command lines from no other place.
resource "aws_s3_object" "recipes" {
  bucket       = aws_s3_bucket.models.id
  key          = "artifacts/recipes.yaml"
  content      = yamlencode({ recipes = try(coalesce(local.catalogue.recipes), {}) })
  content_type = "application/yaml"
}

resource "aws_s3_object" "models_yaml" {
  bucket       = aws_s3_bucket.models.id
  key          = "config/models.yaml"
  content      = local.models_yaml
  content_type = "application/yaml"
}
