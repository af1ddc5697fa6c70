# What `bench init` would do, as Terraform: `terraform init && terraform apply`.
# What exists already has to be imported first (`terraform import`), or apply says that it is there.
terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 5.0"
    }
  }
}

# enable compute.googleapis.com, storage.googleapis.com, iam.googleapis.com, cloudresourcemanager.googleapis.com
resource "google_project_service" "compute" {
  project            = "my-project"
  service            = "compute.googleapis.com"
  disable_on_destroy = false
}
resource "google_project_service" "storage" {
  project            = "my-project"
  service            = "storage.googleapis.com"
  disable_on_destroy = false
}
resource "google_project_service" "iam" {
  project            = "my-project"
  service            = "iam.googleapis.com"
  disable_on_destroy = false
}
resource "google_project_service" "cloudresourcemanager" {
  project            = "my-project"
  service            = "cloudresourcemanager.googleapis.com"
  disable_on_destroy = false
}

# make the bucket gs://my-bench in us-central1: uniform access, never public, payloads deleted after 180 days
resource "google_storage_bucket" "bench" {
  project                     = "my-project"
  name                        = "my-bench"
  location                    = "US-CENTRAL1"
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      age            = 180
      matches_prefix = [
        "payloads/",
      ]
    }
  }
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }
  depends_on                  = [
    google_project_service.storage,
  ]
}

# make the service account bench-vm (machines of bench)
resource "google_service_account" "bench" {
  project      = "my-project"
  account_id   = "bench-vm"
  display_name = "machines of bench"
  depends_on   = [
    google_project_service.iam,
  ]
}

# make the role benchMachine (bench: a machine deletes itself): 1 permission
resource "google_project_iam_custom_role" "benchMachine" {
  project     = "my-project"
  role_id     = "benchMachine"
  title       = "bench: a machine deletes itself"
  permissions = [
    "compute.instances.delete",
  ]
  depends_on  = [
    google_project_service.iam,
  ]
}

# grant benchMachine on the project to serviceAccount:bench-vm@my-project.iam.gserviceaccount.com, machines of bench only
resource "google_project_iam_member" "benchMachine_serviceAccount_bench_vm" {
  project    = "my-project"
  role       = google_project_iam_custom_role.benchMachine.name
  member     = "serviceAccount:bench-vm@my-project.iam.gserviceaccount.com"
  condition {
    title      = "machines of bench only"
    expression = "resource.name.extract(\"/instances/{name}\").startsWith(\"bench-\")"
  }
  depends_on = [
    google_project_service.cloudresourcemanager,
    google_service_account.bench,
  ]
}

# grant storage.objectUser on gs://my-bench to serviceAccount:bench-vm@my-project.iam.gserviceaccount.com, runs and machines only
resource "google_storage_bucket_iam_member" "storage_objectUser_serviceAccount_bench_vm" {
  bucket     = "my-bench"
  role       = "roles/storage.objectUser"
  member     = "serviceAccount:bench-vm@my-project.iam.gserviceaccount.com"
  condition {
    title      = "runs and machines only"
    expression = "resource.type == \"storage.googleapis.com/Object\" && (resource.name.startsWith(\"projects/_/buckets/my-bench/objects/machines/\") || resource.name.startsWith(\"projects/_/buckets/my-bench/objects/runs/\") && !resource.name.endsWith(\"/plan.json\"))"
  }
  depends_on = [
    google_storage_bucket.bench,
    google_service_account.bench,
  ]
}

# grant storage.objectViewer on gs://my-bench to serviceAccount:bench-vm@my-project.iam.gserviceaccount.com, payloads and names only
resource "google_storage_bucket_iam_member" "storage_objectViewer_serviceAccount_bench_vm" {
  bucket     = "my-bench"
  role       = "roles/storage.objectViewer"
  member     = "serviceAccount:bench-vm@my-project.iam.gserviceaccount.com"
  condition {
    title      = "payloads and names only"
    expression = "resource.type == \"storage.googleapis.com/Bucket\" || resource.name.startsWith(\"projects/_/buckets/my-bench/objects/payloads/\")"
  }
  depends_on = [
    google_storage_bucket.bench,
    google_service_account.bench,
  ]
}

# make the role benchLauncher (bench: launch and look): 35 permissions
resource "google_project_iam_custom_role" "benchLauncher" {
  project     = "my-project"
  role_id     = "benchLauncher"
  title       = "bench: launch and look"
  permissions = [
    "compute.advice.capacity",
    "compute.advice.capacityHistory",
    "compute.disks.create",
    "compute.disks.setLabels",
    "compute.disks.useReadOnly",
    "compute.images.create",
    "compute.images.delete",
    "compute.images.deprecate",
    "compute.images.get",
    "compute.images.getFromFamily",
    "compute.images.list",
    "compute.images.setLabels",
    "compute.images.useReadOnly",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getSerialPortOutput",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.networks.get",
    "compute.projects.get",
    "compute.regions.get",
    "compute.regions.list",
    "compute.routers.list",
    "compute.subnetworks.list",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zoneOperations.get",
    "compute.zoneOperations.list",
    "iam.serviceAccounts.get",
    "resourcemanager.projects.get",
    "serviceusage.services.get",
    "serviceusage.services.list",
  ]
  depends_on  = [
    google_project_service.iam,
  ]
}

# grant benchLauncher on the project to user:ada@example.com
resource "google_project_iam_member" "benchLauncher_user_ada" {
  project    = "my-project"
  role       = google_project_iam_custom_role.benchLauncher.name
  member     = "user:ada@example.com"
  depends_on = [
    google_project_service.cloudresourcemanager,
  ]
}

# grant storage.objectUser on gs://my-bench to user:ada@example.com
resource "google_storage_bucket_iam_member" "storage_objectUser_user_ada" {
  bucket     = "my-bench"
  role       = "roles/storage.objectUser"
  member     = "user:ada@example.com"
  depends_on = [
    google_storage_bucket.bench,
  ]
}

# grant storage.legacyBucketReader on gs://my-bench to user:ada@example.com
resource "google_storage_bucket_iam_member" "storage_legacyBucketReader_user_ada" {
  bucket     = "my-bench"
  role       = "roles/storage.legacyBucketReader"
  member     = "user:ada@example.com"
  depends_on = [
    google_storage_bucket.bench,
  ]
}

# grant iam.serviceAccountUser on bench-vm@my-project.iam.gserviceaccount.com to user:ada@example.com
resource "google_service_account_iam_member" "iam_serviceAccountUser_user_ada" {
  service_account_id = "projects/my-project/serviceAccounts/bench-vm@my-project.iam.gserviceaccount.com"
  role               = "roles/iam.serviceAccountUser"
  member             = "user:ada@example.com"
  depends_on         = [
    google_service_account.bench,
  ]
}

# write to settings.yaml: project: my-project, bucket: my-bench, service_account: bench-vm@my-project.iam.gserviceaccount.com, per_run_usd: 1.00, per_day_usd: 5.00
# Terraform does not write to this machine; add these lines to settings.yaml in BENCH_HOME:
#   project: "my-project"
#   bucket: "my-bench"
#   service_account: "bench-vm@my-project.iam.gserviceaccount.com"
#   per_run_usd: "1.00"
#   per_day_usd: "5.00"
